package tool

import (
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"go.yaml.in/yaml/v3"
)

const (
	// maxSecret bounds a file that a secret is read from, and what stands in a header,
	// a variable or a URL after secrets were put in.
	maxSecret = 64 << 10

	// maxSecrets bounds all of that in a file of tools: a small one could put a large
	// secret in very often.
	maxSecrets = 16 << 20
)

// part is a piece of text in which variables may stand.
type part struct {
	text     string // what is meant, or the name of the variable
	variable bool
}

// splitVars finds ${NAME}; $${ means the characters ${. It returns what is wrong
// with the text, which it does not repeat.
func splitVars(s string) (parts []part, bad string) {
	var text strings.Builder
	for s != "" {
		switch {
		case strings.HasPrefix(s, "$${"):
			text.WriteString("${")
			s = s[len("$${"):]
		case strings.HasPrefix(s, "${"):
			name, rest, closed := strings.Cut(s[len("${"):], "}")
			if !closed || !validVariable(name) {
				return nil, "${ begins a variable, ${NAME}, with a name of letters, digits and _; write $${ for the characters ${"
			}
			parts = append(parts, part{text: text.String()}, part{name, true})
			text.Reset()
			s = rest
		default:
			text.WriteByte(s[0])
			s = s[1:]
		}
	}
	return append(parts, part{text: text.String()}), ""
}

// validVariable reports whether s can name a variable of the environment.
func validVariable(s string) bool {
	for i, c := range []byte(s) {
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

// bareVariable is what a shell would take for a variable.
var bareVariable = regexp.MustCompile(`\$[A-Za-z_]`)

// variable looks a variable up. An empty one is as good as none: a credential of
// no characters is a mistake.
func (v value) variable(name string) (string, bool) {
	if "{"+name+"}" == effectIDMark {
		v.fault("the effect id is {effect_id}, without the $")
		return "", false
	}
	s, ok := v.d.env(name)
	if !ok || s == "" {
		what := "is not set"
		if ok {
			what = "is empty"
		}
		v.fault("the environment variable %s %s", clip(name, 64), what)
		return "", false
	}
	if strings.Contains(s, effectIDMark) { // it would be replaced
		v.fault("the environment variable %s must not hold {effect_id}", clip(name, 64))
		return "", false
	}
	return s, true
}

// expanded reads text and puts the variables in.
func (v value) expanded(s string) (string, bool) {
	parts, bad := splitVars(s)
	if bad != "" {
		v.fault("%s", bad)
		return "", false
	}
	var b strings.Builder
	fine := true
	for _, p := range parts {
		if !p.variable && v.origin != nil && bareVariable.MatchString(p.text) {
			v.origin.dollars = append(v.origin.dollars, v.path)
		}
		if p.variable {
			var ok bool
			if p.text, ok = v.variable(p.text); !ok {
				fine = false
			}
		}
		b.WriteString(p.text)
		if b.Len() > maxSecret {
			break
		}
	}
	if !fine {
		return "", false
	}
	return v.bounded(b.String())
}

// secret reads the value of a header or of a variable: text with variables in it,
// or {file: PATH}, which may have a prefix.
func (v value) secret() (string, bool) {
	if v.node.Kind == yaml.MappingNode {
		return v.secretFile()
	}
	s, ok := v.raw()
	if !ok {
		return "", false
	}
	if strings.HasPrefix(s, "file:") {
		v.fault("write {file: PATH} to read it from a file")
		return "", false
	}
	return v.expanded(s)
}

func (v value) secretFile() (string, bool) {
	m, ok := v.mapping("file", "prefix")
	if !ok {
		return "", false
	}
	prefix := ""
	if p, there := m.get("prefix"); there {
		if prefix, ok = p.text(); !ok {
			return "", false
		}
	}
	f, ok := m.need("file", "say where it is read from: {file: PATH}")
	if !ok {
		return "", false
	}
	path, ok := f.text()
	if ok && path == "" {
		f.fault("say where it is read from: {file: PATH}")
		ok = false
	}
	if !ok {
		return "", false
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(v.d.dir, path)
	}
	content, err := readSecret(path)
	switch {
	case err != nil:
		f.fault("%v", err)
		return "", false
	case strings.Contains(content, effectIDMark): // it would be replaced
		f.fault("it must not hold {effect_id}")
		return "", false
	}
	return v.bounded(prefix + content)
}

func (v value) bounded(s string) (string, bool) {
	if len(s) > maxSecret {
		v.fault("it is over %d bytes", maxSecret)
		return "", false
	}
	if v.d.secrets += len(s); v.d.secrets > maxSecrets {
		v.fault("with this one, headers, variables and URLs are over %d bytes in all", maxSecrets)
		return "", false
	}
	return s, true
}

// readSecret reads a small regular file and drops one line end at its end. The
// error never shows what is in it.
func readSecret(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe must not hang the start
	if err != nil {
		return "", fmt.Errorf("it cannot be read: %w", err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("it cannot be read: %w", err)
	}
	if !info.Mode().IsRegular() {
		return "", fmt.Errorf("%s is not a regular file", path)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	switch {
	case err != nil:
		return "", fmt.Errorf("it cannot be read: %w", err)
	case len(b) > maxSecret:
		return "", fmt.Errorf("%s is over %d bytes", path, maxSecret)
	}
	s := strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r")
	if s == "" {
		return "", fmt.Errorf("%s is empty", path)
	}
	return s, nil
}

// url reads a URL and puts the variables in, each as one piece of its path or its
// query: what would be a delimiter there is escaped.
func (v value) url() (string, bool) {
	s, ok := v.raw()
	if !ok {
		return "", false
	}
	parts, bad := splitVars(s)
	if bad != "" {
		v.fault("%s", bad)
		return "", false
	}
	var b strings.Builder
	for _, p := range parts {
		if b.Len() > maxSecret {
			break
		}
		if !p.variable {
			b.WriteString(p.text)
			continue
		}
		_, rest, _ := strings.Cut(b.String(), "://")
		if !strings.ContainsAny(rest, "/?") {
			v.fault("a variable can stand only in the path and in the query: the host is fixed")
			return "", false
		}
		text, found := v.variable(p.text)
		if !found {
			ok = false
		} else if strings.Contains(rest, "?") {
			text = url.QueryEscape(text)
		} else {
			text = url.PathEscape(text)
		}
		b.WriteString(text)
	}
	if !ok {
		return "", false
	}
	return v.bounded(b.String())
}

// A Spec, and what it is made of, may hold secrets in headers, in variables and
// in URLs. However it is printed, it shows a name at most.

const hidden = "(hidden)"

// Format writes the name and nothing else.
func (s Spec) Format(f fmt.State, _ rune) { _, _ = fmt.Fprintf(f, "tool %s %s", s.Name, hidden) }

// MarshalJSON writes the name and nothing else.
func (s Spec) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Name string `json:"name"`
	}{s.Name})
}

// Format hides it.
func (h HTTP) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, hidden) }

// MarshalJSON hides it.
func (h HTTP) MarshalJSON() ([]byte, error) { return json.Marshal(hidden) }

// Format hides it.
func (v Verify) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, hidden) }

// MarshalJSON hides it.
func (v Verify) MarshalJSON() ([]byte, error) { return json.Marshal(hidden) }

// Format hides it.
func (c Command) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, hidden) }

// MarshalJSON hides it.
func (c Command) MarshalJSON() ([]byte, error) { return json.Marshal(hidden) }
