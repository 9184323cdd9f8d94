package tool

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	"github.com/idemd/idemd/idem"
)

// Bounds of a tools file.
const (
	maxFile   = 1 << 20 // bytes
	maxTools  = 1000
	maxDepth  = 64 // of lists and mappings in one another
	maxFaults = 1000
)

// Fault is one thing that is wrong with a tools file. It shows no value that may
// be a secret.
type Fault struct {
	File         string
	Line, Column int    // from 1; a column is a character
	Where        string // the tool and its field; empty for the file as a whole
	What         string // what is wrong, and what would be right
}

func (f Fault) Error() string {
	at := fmt.Sprintf("%s:%d:%d: ", f.File, f.Line, f.Column)
	if f.Where != "" {
		at += f.Where + ": "
	}
	return at + f.What
}

// Faults are all that is wrong with a tools file, in its order.
type Faults []Fault

// Error has a line for each fault.
func (f Faults) Error() string {
	lines := make([]string, len(f))
	for i, one := range f {
		lines[i] = one.Error()
	}
	return strings.Join(lines, "\n")
}

// Load reads a tools file: YAML of at most 1 MiB and 1000 tools, without
// anchors, aliases and tags, each value of the type that its field wants. env
// looks a variable up, as os.LookupEnv does, for ${VAR}. Secrets are read now and
// never again. A JSON Schema has at most 5000 values in it.
//
// The error is a [Faults] that has everything that is wrong, or says why the file
// cannot be read. No tool is given where there is one.
func Load(path string, env func(string) (string, bool)) ([]*Spec, error) {
	text, err := readFile(path)
	if err != nil {
		return nil, fmt.Errorf("tool: the tools file cannot be read: %w", err)
	}
	d := &decoder{file: path, dir: filepath.Dir(path), env: env, rerun: idem.RerunHold}
	specs := d.load(text)
	if len(d.faults) > 0 {
		return nil, d.sorted()
	}
	return specs, nil
}

// readFile reads one byte more than may be, so that too much is seen.
func readFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe without a writer must not hang the start
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, maxFile+1))
}

// Clashes reports the configured tools that have the name of one of the others,
// as [Faults].
func Clashes(specs []*Spec, others []*idem.Tool) error {
	var faults Faults
	for _, s := range specs {
		if slices.ContainsFunc(others, func(t *idem.Tool) bool { return t.Name == s.Name }) {
			faults = append(faults, s.fault("name", "the server brings a tool of this name along; choose another name, or serve without it (--no-samples, no --chaos)"))
		}
	}
	if len(faults) == 0 {
		return nil
	}
	return faults
}

// origin is where a file says what a tool is.
type origin struct {
	file    string
	fields  map[string]position // by path, "http.url"; the tool itself by ""
	spoiled map[string]bool     // paths of what could not be read: true; of all around it: false
	dollars []string            // paths of what has a $NAME that is none
}

func newOrigin(file string, at position) *origin {
	return &origin{file: file, fields: map[string]position{"": at}, spoiled: make(map[string]bool)}
}

// spoil remembers that a field could not be read.
func (o *origin) spoil(path string) {
	if o == nil || path == "" {
		return
	}
	o.spoiled[path] = true
	for path = around(path); path != ""; path = around(path) {
		if _, ok := o.spoiled[path]; !ok {
			o.spoiled[path] = false
		}
	}
}

// around is the path of what a field is in.
func around(path string) string { return path[:max(0, strings.LastIndexAny(path, ".["))] }

// usable reports whether a field could be read, and all around it and in it.
func (o *origin) usable(path string) bool {
	if _, inside := o.spoiled[path]; inside {
		return false
	}
	for ; path != ""; path = around(path) {
		if o.spoiled[path] {
			return false
		}
	}
	return true
}

type position struct{ line, column int }

// at is the position of a field, or of the nearest one around it that is there.
func (o *origin) at(path string) position {
	for {
		if p, ok := o.fields[path]; ok {
			return p
		}
		if path == "" {
			return position{1, 1}
		}
		path = around(path)
	}
}

// fault is one of a tool's field.
func (s *Spec) fault(path, what string) Fault {
	f := Fault{Line: 1, Column: 1, Where: field(s.label(), path), What: what}
	if s.origin != nil {
		p := s.origin.at(path)
		f.File, f.Line, f.Column = s.origin.file, p.line, p.column
	}
	return f
}

func (s *Spec) label() string { return "tool " + s.Name }

// field names a field for people.
func field(label, path string) string {
	switch {
	case label == "":
		return path
	case path == "":
		return label
	}
	return label + ", " + path
}

// decoder reads one file and gathers what is wrong with it.
type decoder struct {
	file   string
	dir    string // of the file, where relative paths of secrets begin
	env    func(string) (string, bool)
	faults Faults // at most maxFaults
	more   int    // that many besides

	timeout time.Duration // of defaults
	rerun   idem.Rerun
	spoiled []string // of defaults: what could not be read

	secrets int // bytes of what secrets were put into, in all
}

func (d *decoder) add(line, column int, where, format string, args ...any) {
	if len(d.faults) == maxFaults {
		d.more++
		return
	}
	d.faults = append(d.faults, Fault{d.file, max(line, 1), max(column, 1), where, fmt.Sprintf(format, args...)})
}

// sorted gives the faults in the order of the file.
func (d *decoder) sorted() Faults {
	slices.SortStableFunc(d.faults, func(a, b Fault) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
	if d.more > 0 {
		last := d.faults[len(d.faults)-1]
		last.Where, last.What = "", fmt.Sprintf("%d more faults are not shown", d.more)
		return append(d.faults, last)
	}
	return d.faults
}

func (d *decoder) load(text []byte) []*Spec {
	if len(text) > maxFile {
		d.add(1, 1, "", "the file is over %d bytes", maxFile)
		return nil
	}
	if !d.checkText(text) {
		return nil
	}
	in := yaml.NewDecoder(bytes.NewReader(text))
	var doc, next yaml.Node
	switch err := in.Decode(&doc); {
	case errors.Is(err, io.EOF) || err == nil && len(doc.Content) == 0:
		d.add(1, 1, "", "the file is empty; it needs version: 1 and tools")
		return nil
	case err != nil:
		d.syntax(text, err)
		return nil
	}
	switch err := in.Decode(&next); {
	case err == nil:
		d.add(next.Line, next.Column, "", "a second document begins here; a tools file is one document")
	case !errors.Is(err, io.EOF):
		d.syntax(text, err)
	}
	root := doc.Content[0]
	if !d.checkTree(root, 1) {
		return nil
	}
	return d.root(root)
}

// checkText refuses what is not text: the parser would do so without a place.
func (d *decoder) checkText(text []byte) bool {
	line, column := 1, 1
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRune(text[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			d.add(line, column, "", "the byte 0x%02x is not UTF-8", text[i])
			return false
		case r == '\n':
			line, column = line+1, 0
		case r < ' ' && r != '\t' && r != '\r', r >= 0x7f && r < 0xa0 && r != 0x85, r == 0xfffe, r == 0xffff:
			d.add(line, column, "", "the control character U+%04X is not allowed", r)
			return false
		}
		column++
		i += n
	}
	return true
}

var (
	syntaxLine    = regexp.MustCompile(`^line (\d+): `)
	unknownAnchor = regexp.MustCompile(`^unknown anchor '(.*)' referenced$`)
)

// syntax reports what the parser says, which knows lines at most: the column is
// where the line's text begins.
func (d *decoder) syntax(text []byte, err error) {
	what := strings.TrimPrefix(err.Error(), "yaml: ")
	if m := unknownAnchor.FindStringSubmatch(what); m != nil {
		before, _, _ := strings.Cut(string(text), "*"+m[1])
		line := before[strings.LastIndexByte(before, '\n')+1:]
		d.add(1+strings.Count(before, "\n"), 1+utf8.RuneCountInString(line), "", "%s", noAliases)
		return
	}
	line := 1
	if m := syntaxLine.FindStringSubmatch(what); m != nil {
		line, _ = strconv.Atoi(m[1])
		what = what[len(m[0]):]
	}
	column, lines := 1, strings.Split(string(text), "\n")
	if line <= len(lines) {
		l := lines[line-1]
		column += len(l) - len(strings.TrimLeft(l, " \t"))
	}
	if line <= len(lines) && unquoted(strings.Join(lines[line-1:min(line+1, len(lines))], " ")) {
		what += "; quote what has braces in it, \"${NAME}\""
	}
	d.add(line, column, "", "this is not YAML: %s", what)
}

// unquoted reports whether text has a variable or the effect id where a mapping in
// braces may have been taken for it.
func unquoted(text string) bool {
	return strings.Contains(text, "${") || strings.Contains(text, effectIDMark)
}

const noAliases = "anchors (&) and aliases (*) are not allowed; write the value in full, or quote it if text is meant"

// checkTree refuses what would let a small file mean a large one, or text mean
// something else.
func (d *decoder) checkTree(n *yaml.Node, depth int) bool {
	fine := true
	bad := func(what string) {
		d.add(n.Line, n.Column, "", "%s", what)
		fine = false
	}
	switch {
	case depth > maxDepth:
		bad(fmt.Sprintf("lists and mappings are more than %d deep in one another", maxDepth))
		return false
	case n.Kind == yaml.AliasNode, n.Anchor != "":
		bad(noAliases)
	case n.Style&yaml.TaggedStyle != 0:
		bad("tags (!) are not allowed; quote it if text is meant")
	case n.Kind == yaml.MappingNode:
		for i := 0; i < len(n.Content); i += 2 {
			if k := n.Content[i]; k.Kind == yaml.ScalarNode && k.Style == 0 && k.Value == "<<" {
				d.add(k.Line, k.Column, "", "merge keys (<<) are not allowed; write the fields in full")
				fine = false
			}
		}
	}
	for _, c := range n.Content {
		if !d.checkTree(c, depth+1) {
			fine = false
		}
	}
	return fine
}

// root reads the whole file.
func (d *decoder) root(n *yaml.Node) []*Spec {
	top, ok := (value{d: d, node: n}).mapping("version", "defaults", "tools")
	if !ok {
		return nil
	}
	if v, ok := top.need("version", "say version: 1"); ok {
		if v.node.Kind != yaml.ScalarNode || scalarOf(v.node) != scalarNumber || v.node.Value != "1" {
			v.fault("this release reads version: 1 and no other")
		}
	}
	if v, ok := top.get("defaults"); ok {
		d.defaults(v)
	}
	v, ok := top.need("tools", "say tools: and a list of them")
	if !ok {
		return nil
	}
	items, ok := v.list(maxTools)
	if !ok {
		return nil
	}
	specs := make([]*Spec, 0, len(items))
	lines := make(map[string]int)
	for i, item := range items {
		s := d.tool(item, i+1)
		if s == nil {
			continue
		}
		specs = append(specs, s)
		if !idem.ValidName(s.Name) {
			continue
		}
		if line, taken := lines[s.Name]; taken {
			at := s.origin.at("name")
			d.add(at.line, at.column, field(s.label(), "name"), "the tool on line %d has this name already; each needs its own", line)
			continue
		}
		lines[s.Name] = s.origin.at("name").line
	}
	return specs
}

// defaults are for the tools that do not say it themselves.
func (d *decoder) defaults(v value) {
	m, ok := v.mapping("timeout", "rerun")
	if !ok {
		return
	}
	if t, ok := m.get("timeout"); ok {
		if d.timeout, ok = t.duration(minTimeout, maxTimeout); !ok {
			d.spoiled = append(d.spoiled, "timeout")
		}
	}
	if r, ok := m.get("rerun"); ok {
		word, ok := r.word(reruns...)
		if d.rerun = idem.Rerun(word); !ok {
			d.spoiled = append(d.spoiled, "rerun")
		}
	}
}
