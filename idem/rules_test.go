package idem

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const ruleCount = 18

// owed are parts of rules that are not built yet. Nothing is asked of a directory
// without Go files; once there are some, a test in it must name the rule.
var owed = []struct{ rule, dir, reason string }{
	{"R1", "client", "a client keeps one key over its retries and its own restarts"},
	{"R16", "client", "a client compares its longest retry span with the window that it is told"},
	{"R18", "probe", "the probe judges its scenarios by the ledger"},
	{"R18", "bench", "a run of the bench is void unless the totals agree"},
}

// TestRules holds the package comment, which declares the rules, to what is
// tested: each rule is declared once and in order, names tests that exist, and is
// named in the files of those tests.
func TestRules(t *testing.T) {
	rules := declaredRules(t)
	for i, r := range rules {
		if want := ruleName(i + 1); r.name != want {
			t.Fatalf("doc.go declares %s where %s should be", r.name, want)
		}
	}
	if len(rules) != ruleCount {
		t.Fatalf("doc.go declares %d rules, want %d", len(rules), ruleCount)
	}

	root := moduleRoot(t)
	tests := testFiles(t, root)
	for _, r := range rules {
		if len(r.tests) == 0 {
			t.Errorf("%s: doc.go names no test", r.name)
		}
		for _, name := range r.tests {
			found, named := false, false
			for _, f := range tests {
				if slices.Contains(f.declares, name) {
					found = true
					named = named || slices.Contains(f.rules, r.name)
				}
			}
			switch {
			case !found:
				t.Errorf("%s: doc.go names %s, and there is no such test", r.name, name)
			case !named:
				t.Errorf("%s: doc.go names %s, and the file of that test does not name the rule", r.name, name)
			}
		}
	}
	for _, f := range tests {
		for _, name := range f.rules {
			if !slices.ContainsFunc(rules, func(r rule) bool { return r.name == name }) {
				t.Errorf("%s names %s, and doc.go declares no such rule", f.path, name)
			}
		}
	}
	for _, o := range owed {
		if goFiles, err := filepath.Glob(filepath.Join(root, o.dir, "*.go")); err != nil || len(goFiles) == 0 {
			continue
		}
		if !slices.ContainsFunc(tests, func(f testFile) bool {
			return strings.HasPrefix(f.path, o.dir+"/") && slices.Contains(f.rules, o.rule)
		}) {
			t.Errorf("%s: no test in %s names it, though %s", o.rule, o.dir, o.reason)
		}
	}
}

type rule struct {
	name  string
	tests []string
}

var (
	ruleItem  = regexp.MustCompile(`(?m)^\s*- (R\d+)\. `)
	ruleTests = regexp.MustCompile(`(?s)Tests: ([^.]*)\.`)
	ruleWord  = regexp.MustCompile(`\bR[1-9]\d*\b`)
	space     = regexp.MustCompile(`[\s,]+`)
)

func ruleName(n int) string {
	const digits = "0123456789"
	if n < 10 {
		return "R" + digits[n:n+1]
	}
	return "R" + digits[n/10:n/10+1] + digits[n%10:n%10+1]
}

// declaredRules reads the rules and the names of their tests from doc.go.
func declaredRules(t *testing.T) []rule {
	t.Helper()
	src, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	doc := strings.ReplaceAll(string(src), "\n//", "\n")
	items := ruleItem.FindAllStringSubmatchIndex(doc, -1)
	var rules []rule
	for i, at := range items {
		end := len(doc)
		if i+1 < len(items) {
			end = items[i+1][0]
		}
		r := rule{name: doc[at[2]:at[3]]}
		if m := ruleTests.FindStringSubmatch(doc[at[0]:end]); m != nil {
			r.tests = space.Split(m[1], -1)
		}
		rules = append(rules, r)
	}
	return rules
}

// testFile is what a file of tests declares, and the rules that it names.
type testFile struct {
	path     string
	declares []string // test functions, and groups of the suite of stores
	rules    []string
}

var (
	testFunc   = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	suiteGroup = regexp.MustCompile(`(?m)^var (\w+)Cases = \[\]testCase\{`)
)

// testFiles reads every file of tests in the module, and all of storetest, which
// is tests as well.
func testFiles(t *testing.T, root string) []testFile {
	t.Helper()
	var files []testFile
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if rel != "." && strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || rel == "tools" {
				return fs.SkipDir
			}
			return nil
		}
		suite := strings.HasPrefix(rel, "idem/storetest/") && strings.HasSuffix(rel, ".go")
		if !suite && !strings.HasSuffix(rel, "_test.go") || rel == "idem/rules_test.go" {
			return nil
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		f := testFile{path: rel, rules: ruleWord.FindAllString(string(src), -1)}
		for _, m := range testFunc.FindAllSubmatch(src, -1) {
			f.declares = append(f.declares, string(m[1]))
		}
		for _, m := range suiteGroup.FindAllSubmatch(src, -1) {
			f.declares = append(f.declares, "storetest/"+strings.ToUpper(string(m[1][:1]))+string(m[1][1:]))
		}
		files = append(files, f)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// moduleRoot is the directory that the module is in.
func moduleRoot(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			t.Fatal("no go.mod above the package")
		}
		dir = up
	}
}
