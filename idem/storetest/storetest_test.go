package storetest_test

import (
	"testing"

	"github.com/idemd/idemd/idem"
	"github.com/idemd/idemd/idem/storetest"
)

func TestModel(t *testing.T) {
	for name, exclusive := range map[string]bool{"exclusive": true, "shared": false} {
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, storetest.Options{
				New: func(*testing.T) idem.Store { return storetest.NewModel(storetest.ModelOptions{Exclusive: exclusive}) },
				Reopen: func(t *testing.T, s idem.Store) idem.Store {
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
					return s.(*storetest.Model).Open()
				},
				Exclusive: exclusive,
			})
		})
	}
}
