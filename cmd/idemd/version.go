package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"
)

// version is set when a release is built: -ldflags "-X main.version=v1.2.3".
var version = ""

type versionCmd struct {
	JSON bool `name:"json" help:"Write a JSON document."`
}

// build is what this program was made of.
type build struct {
	Version string `json:"version"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
	Pebble  string `json:"pebble,omitempty"` // the storage engine
}

func thisBuild() build {
	b := build{Version: version, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	if b.Version == "" {
		b.Version = info.Main.Version
	}
	if b.Version == "" || b.Version == "(devel)" {
		b.Version = "dev"
	}
	for _, m := range info.Deps {
		if m.Path == "github.com/cockroachdb/pebble/v2" {
			b.Pebble = m.Version
		}
	}
	return b
}

// Run shows the version.
func (c *versionCmd) Run(con *console) error {
	b := thisBuild()
	if c.JSON {
		doc, err := json.Marshal(b)
		if err != nil {
			return err
		}
		return con.print("%s\n", doc)
	}
	line := fmt.Sprintf("idemd %s %s %s/%s", b.Version, b.Go, b.OS, b.Arch)
	if b.Pebble != "" {
		line += " pebble " + b.Pebble
	}
	return con.print("%s\n", line)
}
