package tool

import (
	"bytes"
	"log/slog"
)

// What is logged of one attempt's stderr. It is read to its end in any case.
const (
	maxStderr      = 16 << 10 // bytes
	maxStderrLine  = 1 << 10  // bytes of a line
	maxStderrLines = 256      // a line of one byte costs a record too
)

// stderrLog logs what a program writes to stderr line by line. None of it is ever
// stored, or shown to clients.
type stderrLog struct {
	log     *slog.Logger
	line    []byte // begun
	bytes   int    // that may still be logged
	lines   int    // that may still be logged
	omitted int64  // bytes
}

func newStderrLog(log *slog.Logger) stderrLog {
	return stderrLog{log: log, bytes: maxStderr, lines: maxStderrLines}
}

func (s *stderrLog) Write(b []byte) (int, error) {
	for rest := b; len(rest) > 0; {
		part, after, ended := bytes.Cut(rest, []byte{'\n'})
		s.add(part)
		if ended {
			s.end()
		}
		rest = after
	}
	return len(b), nil
}

func (s *stderrLog) add(part []byte) {
	n := 0
	if s.lines > 0 {
		n = min(len(part), maxStderrLine-len(s.line), s.bytes-len(s.line))
	}
	s.line = append(s.line, part[:n]...)
	s.omitted += int64(len(part) - n)
}

// end logs the line, unless it is blank.
func (s *stderrLog) end() {
	if line := bytes.TrimRight(s.line, " \t\r"); len(line) > 0 {
		s.log.Info("the command wrote to stderr", "line", string(line))
		s.bytes -= len(s.line)
		s.lines--
	}
	s.line = s.line[:0]
}

// finish logs what is left, and how much was left out.
func (s *stderrLog) finish() {
	s.end()
	if s.omitted > 0 {
		s.log.Info("not all that the command wrote to stderr is logged", "omitted_bytes", s.omitted)
	}
}
