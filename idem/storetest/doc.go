// Package storetest holds every [idem.Store] to its contract.
//
// It has three parts: [Run], the suite that a store must pass; [Model], the
// obviously right store, which is the suite's oracle and the store that tests
// of the layers above run on; and [Check], which reads a store at rest and says
// what cannot be in it.
//
// It imports idem and the standard library, and is for tests only.
package storetest
