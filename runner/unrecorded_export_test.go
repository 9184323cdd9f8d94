package runner

// Runs is how many runs without a record have a key and are under way, and how
// many turns of a tool are taken.
func (r *Runner) Runs(tool string) (named, turns int) {
	r.unrecorded.mu.Lock()
	defer r.unrecorded.mu.Unlock()
	return len(r.unrecorded.byKey), len(r.unrecorded.turns[tool])
}
