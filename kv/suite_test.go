package kv

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/idemd/idemd/idem"
	"github.com/idemd/idemd/idem/storetest"
)

func TestStore(t *testing.T) {
	places := map[string]func(t *testing.T) Options{
		"memory": func(*testing.T) Options { return testOptions(vfs.NewMem(), "data") },
		"disk":   func(t *testing.T) Options { return testOptions(nil, t.TempDir()) },
	}
	for name, place := range places {
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, storetest.Options{
				Exclusive: true,
				New:       func(t *testing.T) idem.Store { return openOptions(t, place(t)) },
				Reopen: func(t *testing.T, s idem.Store) idem.Store {
					closeStore(t, s.(*Store))
					return openOptions(t, s.(*Store).opts)
				},
			})
		})
	}
}
