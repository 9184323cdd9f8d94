package main

import "os"

// killSelf ends this process as kill -9 does: nothing is flushed, no deferred
// function runs. It is what a fault "exit" asks for.
func killSelf() {
	if p, err := os.FindProcess(os.Getpid()); err == nil {
		_ = p.Kill()
	}
	select {} // the signal may take a moment; nothing may happen in it
}
