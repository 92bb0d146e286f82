package digest

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"strings"
	"time"
)

//go:embed page.html
var pageSource string

// pageTemplate escapes everything by its place; names are isolated by <bdi>, so
// that one written from right to left moves nothing around it.
var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"number":  number,
	"percent": percent,
	"counted": func(n int, noun string) string { return counted(n, noun) },
	"causes":  causeList,
	"minute":  func(t time.Time) string { return t.Format("Mon 2 Jan 15:04") },
	"name":    func(s string) string { return strings.Trim(clean(s), "\u2068\u2069") },
}).Parse(pageSource))

// pageRows are how many rows of each ranking, and pageIncidents how many
// incidents, a page shows; JSON has all of them.
const (
	pageRows      = 50
	pageIncidents = 200
)

// pageSection is one ranking as the page lays it out.
type pageSection struct {
	Title, Noun string
	Rows        []pageRow
	More        int
}

type pageRow struct {
	Row
	Things int    // outages or trips
	Mark   string // the change, empty for none
	Worse  bool
	Bars   []bar
}

// bar is a span as a part of the window, in thousandths.
type bar struct {
	X, Width float64
	Kind     Kind
	Title    string
}

// HTML is the report as one page that needs nothing else: no script, no picture,
// no font, light or dark as the reader's system is. Its only style is in a
// <style> element, so a Content-Security-Policy has to allow that and nothing
// more.
func HTML(r Report) ([]byte, error) {
	day, times := r.label()
	page := struct {
		Report
		Day, Times, Length string
		Happened           string
		Sections           []pageSection
		Shown              []IncidentRow
		Hidden             int
	}{
		Report: r, Day: day, Times: times, Length: r.length(), Happened: plain(r.happened()),
		Shown: r.Incidents,
	}
	for _, s := range []struct {
		title, noun string
		rows        []Row
	}{{"Machines", "outage", r.Machines}, {"Models", "trip", r.Models}, {"Accounts", "trip", r.Accounts}} {
		section := pageSection{Title: s.title, Noun: s.noun}
		for _, row := range s.rows {
			if len(section.Rows) == pageRows {
				section.More++
				continue
			}
			section.Rows = append(section.Rows, r.pageRow(row, s.noun))
		}
		if len(section.Rows) > 0 {
			page.Sections = append(page.Sections, section)
		}
	}
	if n := len(r.Incidents) - pageIncidents; n > 0 {
		page.Shown, page.Hidden = r.Incidents[n:], n
	}
	var b bytes.Buffer
	if err := pageTemplate.Execute(&b, page); err != nil {
		return nil, fmt.Errorf("write digest of %s as HTML: %w", r.Window.To.Format(time.DateOnly), err)
	}
	return b.Bytes(), nil
}

func (r Report) pageRow(row Row, noun string) pageRow {
	p := pageRow{Row: row, Things: row.Trips, Mark: row.Change.mark(noun)}
	p.Worse = strings.HasPrefix(p.Mark, "▲")
	if noun == "outage" {
		p.Things = row.Outages
	}
	whole := r.Window.To.Sub(r.Window.From)
	if whole <= 0 {
		return p
	}
	for _, s := range row.Spans {
		// A bar narrower than a pixel would not be seen.
		x, w := share(s.From.Sub(r.Window.From), whole), max(share(s.To.Sub(s.From), whole), 4)
		end := r.when(s.To)
		if s.StillOpen {
			end = "still open"
		}
		p.Bars = append(p.Bars, bar{
			X: min(x, 1000-w), Width: w, Kind: s.Kind,
			Title: fmt.Sprintf("%s–%s (%s) %s", r.when(s.From), end, span(s.To.Sub(s.From)), s.Kind),
		})
	}
	return p
}

func share(part, whole time.Duration) float64 {
	return float64(int64(10000*float64(part)/float64(whole))) / 10
}

// plain takes the tags out of our own wording.
func plain(s string) string {
	return strings.NewReplacer("<b>", "", "</b>", "").Replace(s)
}
