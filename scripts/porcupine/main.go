// porcupine [--partial] [--limit DURATION] HISTORY...: asks Porcupine whether clients' histories are linearisable.
//
// The histories are those of `notary check` (docs/formats.md). The object is the notary as its clients see it: each state
// is a write-once register of the transaction that spends it, each transaction id one of content and log offset. A
// request with several states takes its step on all their registers at once. So a partition is what requests connect:
// the registers of two partitions have no operation in common, and a history is linearisable if each partition is.
//
// An attempt without a definite answer returns after everything else: it may take effect at any later moment, and has
// none where it stands last. It is left out where no answer shows its transaction: any order with its effect is one
// without it, too. Refusals that depend on no register (a signature, a right, a command's id) are left out.
//
// Prints one JSON document. Exit code 0: linearisable; 1: not; 2: no history; 3: not decided in time, which partitions of
// thousands of operations need too much of.
package main

import (
	"bufio"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"os"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

const (
	lineMaxBytes = 4_000_000
	notarised    = "NOTARISED"
	open         = "UNKNOWN"
	shownMax     = 5 // partitions that a report names
)

var judged = []string{notarised, open, "TX_ID_REUSED", "STATE_CONFLICT", "TIME_WINDOW_CLOSED", "TX_NOT_FOUND"}

// event is a line of a history, of any type.
type event struct {
	Type    string `json:"type"`
	Process string `json:"process"`
	Op      int64  `json:"op"`
	AtNs    int64  `json:"at_ns"`
	TxID    string `json:"tx_id"`
	Content *struct {
		Party      string   `json:"party"`
		Inputs     []string `json:"inputs"`
		References []string `json:"references"`
		FromUs     *int64   `json:"from_us"`
		UntilUs    *int64   `json:"until_us"`
	} `json:"content"`
	ContentDigest string `json:"content_digest"`
	LogOffset     int64  `json:"log_offset"`
	RecordOffset  *int64 `json:"record_offset"`
	Code          string `json:"code"`
	Conflicts     []struct {
		State          string `json:"state"`
		ConsumedByHash string `json:"consumed_by_hash"`
	} `json:"conflicts"`
}

// attempt is one operation: what was sent, and how it ended.
type attempt struct {
	name       string
	tx         string
	isLookUp   bool
	content    string // of a submission
	inputs     []string
	references []string
	sentNs     int64
	endedNs    int64
	outcome    string
	digest     string            // of a success
	offset     int64             // of a success
	record     int64             // in the log, of the answer; -1: it names none
	conflicts  map[string]string // state -> hash of the transaction that spent it
}

// entry is what a transaction id was notarised with; digest and offset are unknown until an answer names them.
type entry struct {
	content, digest string
	offset          int64
}

// registers is a value: a step makes a new one.
type registers struct {
	transactions map[string]entry
	spent        map[string]string // state -> hash of the transaction
	sum          uint64            // of the transactions' and states' names: for Porcupine's cache
}

func hashOf(tx string) string {
	raw, err := hex.DecodeString(tx)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}

func sumOf(words ...string) uint64 {
	h := fnv.New64a()
	for _, word := range words {
		h.Write([]byte(word))
	}
	return h.Sum64()
}

// step is the notary's specification. It is false where no notary answers so with these registers.
func step(now *registers, a *attempt) (bool, *registers) {
	known, isKnown := now.transactions[a.tx]
	taken := map[string]string{}
	for _, state := range slices.Concat(a.inputs, a.references) {
		if by, ok := now.spent[state]; ok {
			taken[state] = by
		}
	}
	switch a.outcome {
	case notarised:
		if isKnown {
			return sameTransaction(now, known, a)
		}
		return !a.isLookUp && len(taken) == 0, notarise(now, a)
	case open:
		if isKnown || len(taken) > 0 {
			return true, now
		}
		return true, notarise(now, a)
	case "TX_ID_REUSED":
		return isKnown && known.content != a.content, now
	case "STATE_CONFLICT":
		return !isKnown && len(taken) > 0 && maps.Equal(taken, a.conflicts), now
	case "TIME_WINDOW_CLOSED":
		return !isKnown && len(taken) == 0, now
	default: // TX_NOT_FOUND
		return !isKnown, now
	}
}

func sameTransaction(now *registers, known entry, a *attempt) (bool, *registers) {
	told := entry{known.content, a.digest, a.offset}
	if known == told && (a.isLookUp || a.content == known.content) {
		return true, now
	}
	fits := (a.isLookUp || a.content == known.content) &&
		(known.digest == "" || known.digest == a.digest) && (known.offset < 0 || known.offset == a.offset)
	if !fits {
		return false, now
	}
	next := &registers{maps.Clone(now.transactions), now.spent, now.sum}
	next.transactions[a.tx] = told
	return true, next
}

func notarise(now *registers, a *attempt) *registers {
	next := &registers{maps.Clone(now.transactions), maps.Clone(now.spent), now.sum ^ sumOf("tx", a.tx)}
	next.transactions[a.tx] = entry{a.content, a.digest, a.offset}
	for _, state := range a.inputs {
		next.spent[state] = hashOf(a.tx)
		next.sum ^= sumOf(state, a.tx)
	}
	return next
}

var model = porcupine.Model{
	Init: func() any { return &registers{map[string]entry{}, map[string]string{}, 0} },
	Step: func(state, input, _ any) (bool, any) { return step(state.(*registers), input.(*attempt)) },
	Equal: func(one, other any) bool {
		a, b := one.(*registers), other.(*registers)
		return a == b || (maps.Equal(a.transactions, b.transactions) && maps.Equal(a.spent, b.spent))
	},
	Hash: func(state any) uint64 { return state.(*registers).sum },
}

// ---- histories ----

func readHistory(path string, attempts map[string]*attempt) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(make([]byte, 0, 65_536), lineMaxBytes)
	for number := 1; lines.Scan(); number++ {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("%s, line %d: %w", path, number, err)
		}
		if err := note(&e, attempts); err != nil {
			return fmt.Errorf("%s, line %d: %w", path, number, err)
		}
	}
	return lines.Err()
}

func note(e *event, attempts map[string]*attempt) error {
	name := fmt.Sprintf("%s/%d", e.Process, e.Op)
	if e.Type == "invoke" {
		if attempts[name] != nil {
			return fmt.Errorf("%s is sent twice", name)
		}
		attempts[name] = sent(name, e)
		return nil
	}
	a := attempts[name]
	if a == nil || a.endedNs != math.MaxInt64 {
		return fmt.Errorf("%s was not sent, or ended twice", name)
	}
	if e.RecordOffset != nil {
		a.record = *e.RecordOffset
	}
	switch e.Type {
	case "ok":
		a.outcome, a.endedNs, a.digest, a.offset = notarised, e.AtNs, e.ContentDigest, e.LogOffset
	case "refused":
		a.outcome, a.endedNs, a.conflicts = e.Code, e.AtNs, map[string]string{}
		for _, conflict := range e.Conflicts {
			a.conflicts[conflict.State] = conflict.ConsumedByHash
		}
	case "unknown":
	default:
		return fmt.Errorf("no type %q", e.Type)
	}
	return nil
}

func sent(name string, e *event) *attempt {
	a := &attempt{
		name: name, tx: e.TxID, isLookUp: e.Content == nil, sentNs: e.AtNs, endedNs: math.MaxInt64, outcome: open, offset: -1, record: -1,
	}
	if e.Content == nil {
		return a
	}
	a.inputs, a.references = e.Content.Inputs, e.Content.References
	of := func(at *int64) int64 {
		if at == nil {
			return -1
		}
		return *at
	}
	inputs, references := slices.Sorted(slices.Values(a.inputs)), slices.Sorted(slices.Values(a.references))
	a.content = fmt.Sprint(inputs, references, of(e.Content.FromUs), of(e.Content.UntilUs))
	return a
}

// relevant leaves out what constrains no register.
func relevant(attempts map[string]*attempt) []*attempt {
	shown := map[string]bool{} // transactions, and their hashes, whose effect an answer shows
	for _, a := range attempts {
		if a.outcome == notarised || a.outcome == "TX_ID_REUSED" {
			shown[hashOf(a.tx)] = true
		}
		for _, by := range a.conflicts {
			shown[by] = true
		}
	}
	var kept []*attempt
	for _, a := range attempts {
		if a.outcome == open && (a.isLookUp || !shown[hashOf(a.tx)]) {
			continue
		}
		if slices.Contains(judged, a.outcome) {
			kept = append(kept, a)
		}
	}
	sort.Slice(kept, func(i, j int) bool { return kept[i].sentNs < kept[j].sentNs })
	return kept
}

// partitions joins the operations that have a register in common.
func partitions(attempts []*attempt) [][]*attempt {
	parent := map[string]string{}
	var root func(string) string
	root = func(key string) string {
		for {
			above, ok := parent[key]
			if !ok || above == key {
				return key
			}
			if further, ok := parent[above]; ok {
				parent[key] = further
			}
			key = above
		}
	}
	for _, a := range attempts {
		of := root("tx " + a.tx)
		parent[of] = of
		for _, state := range slices.Concat(a.inputs, a.references) {
			other := root(state)
			parent[other] = of
		}
	}
	parts := map[string][]*attempt{}
	var order []string
	for _, a := range attempts {
		of := root("tx " + a.tx)
		if parts[of] == nil {
			order = append(order, of)
		}
		parts[of] = append(parts[of], a)
	}
	found := make([][]*attempt, 0, len(order))
	for _, of := range order {
		found = append(found, parts[of])
	}
	return found
}

// rests says whether a partition shows a transaction that none of its operations sent.
func rests(part []*attempt) bool {
	own, ids := map[string]bool{}, map[string]bool{}
	for _, a := range part {
		if !a.isLookUp {
			own[hashOf(a.tx)], ids[a.tx] = true, true
		}
	}
	for _, a := range part {
		if a.isLookUp && a.outcome == notarised && !ids[a.tx] {
			return true
		}
		for _, by := range a.conflicts {
			if !own[by] {
				return true
			}
		}
	}
	return false
}

// ---- the verdict ----

type report struct {
	Judge       string     `json:"judge"`
	Verdict     string     `json:"verdict"`
	Operations  int        `json:"operations"`
	Judged      int        `json:"judged"`
	Partitions  int        `json:"partitions"`
	Largest     int        `json:"largest"`
	LeftOut     int        `json:"left_out"` // partitions that rest on transactions of clients without a history
	Refused     [][]string `json:"refused,omitempty"`
	TookSeconds float64    `json:"took_s"`
}

// check asks for an order in which answers stand as their records do in the log, and where there is none, for any.
// The first question is quick, and its yes is a yes: each interval lies within the real one. Its no is none.
func check(part []*attempt, limit time.Duration) porcupine.CheckResult {
	if operations, ok := inOrderOfRecords(part); ok {
		if porcupine.CheckOperationsTimeout(model, operations, limit/2) == porcupine.Ok {
			return porcupine.Ok
		}
	}
	return porcupine.CheckOperationsTimeout(model, operationsOf(part), limit)
}

func operationsOf(part []*attempt) []porcupine.Operation {
	operations := make([]porcupine.Operation, len(part))
	for at, a := range part {
		operations[at] = porcupine.Operation{Input: a, Call: a.sentNs, Return: a.endedNs}
	}
	return operations
}

// inOrderOfRecords gives each answer that names a record a moment, in the order of the records; false: there is none.
func inOrderOfRecords(part []*attempt) ([]porcupine.Operation, bool) {
	operations := operationsOf(part)
	var named []int
	for at, a := range part {
		if a.record >= 0 {
			named = append(named, at)
		}
	}
	slices.SortStableFunc(named, func(i, j int) int { return cmp.Compare(part[i].record, part[j].record) })
	moment := int64(math.MinInt64)
	for _, at := range named {
		moment = max(moment+1, operations[at].Call)
		if moment > operations[at].Return {
			return nil, false
		}
		operations[at].Call, operations[at].Return = moment, moment
	}
	return operations, true
}

func described(part []*attempt) []string {
	var lines []string
	for _, a := range part {
		ended := "never"
		if a.endedNs != math.MaxInt64 {
			ended = fmt.Sprint(a.endedNs)
		}
		lines = append(lines, fmt.Sprintf("%s sent %d ended %s: %s %s at %d, inputs %s, conflicts %v",
			a.name, a.sentNs, ended, a.tx, a.outcome, a.offset, strings.Join(a.inputs, " "), a.conflicts))
	}
	return lines
}

func judge(attempts map[string]*attempt, partial bool, limit time.Duration) report {
	began := time.Now()
	kept := relevant(attempts)
	found := report{Judge: "porcupine", Verdict: "linearisable", Operations: len(attempts), Judged: len(kept)}
	for _, part := range partitions(kept) {
		if partial && rests(part) {
			found.LeftOut++
			found.Judged -= len(part)
			continue
		}
		found.Partitions++
		found.Largest = max(found.Largest, len(part))
		switch check(part, max(limit-time.Since(began), time.Millisecond)) {
		case porcupine.Illegal:
			found.Verdict = "refused"
			if len(found.Refused) < shownMax {
				found.Refused = append(found.Refused, described(part))
			}
		case porcupine.Unknown:
			if found.Verdict == "linearisable" {
				found.Verdict = "undecided"
			}
		}
	}
	found.TookSeconds = time.Since(began).Seconds()
	return found
}

func main() {
	partial := flag.Bool("partial", false, "others may have spent states, too")
	limit := flag.Duration("limit", time.Minute, "longest time for the verdict")
	flag.Parse()
	attempts := map[string]*attempt{}
	for _, path := range flag.Args() {
		if err := readHistory(path, attempts); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
	if len(attempts) == 0 {
		fmt.Fprintln(os.Stderr, "no operation in any history: porcupine [--partial] [--limit DURATION] HISTORY...")
		os.Exit(2)
	}
	found := judge(attempts, *partial, *limit)
	if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	os.Exit(map[string]int{"linearisable": 0, "refused": 1, "undecided": 3}[found.Verdict])
}
