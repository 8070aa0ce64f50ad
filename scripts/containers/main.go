// Lints container files: `containers-lint FILE...`. A compose file is read as Compose reads it, with its schema; any
// other file is parsed as BuildKit parses it, with BuildKit's own rules. Prints each finding; exit code 1 if there are any.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

func main() {
	found := 0
	for _, name := range os.Args[1:] {
		look := containerfile
		if strings.HasSuffix(name, ".yml") {
			look = compose
		}
		for _, finding := range look(name) {
			fmt.Printf("%s: %s\n", name, finding)
			found++
		}
	}
	if found > 0 {
		os.Exit(1)
	}
}

func compose(name string) []string {
	options, err := cli.NewProjectOptions([]string{name}, cli.WithWorkingDirectory(filepath.Dir(name)))
	if err == nil {
		_, err = options.LoadProject(context.Background())
	}
	if err != nil {
		return []string{err.Error()}
	}
	return nil
}

func containerfile(name string) (findings []string) {
	file, err := os.Open(name)
	if err != nil {
		return []string{err.Error()}
	}
	defer file.Close()
	parsed, err := parser.Parse(file)
	if err != nil {
		return []string{err.Error()}
	}
	for _, warning := range parsed.Warnings {
		findings = append(findings, warning.Short)
	}
	rules := linter.New(&linter.Config{
		Warn: func(rule, _, _, message string, at []parser.Range) {
			line := 0
			if len(at) > 0 {
				line = at[0].Start.Line
			}
			findings = append(findings, fmt.Sprintf("line %d: %s: %s", line, rule, message))
		},
	})
	if _, _, err := instructions.Parse(parsed.AST, rules); err != nil {
		findings = append(findings, err.Error())
	}
	return findings
}
