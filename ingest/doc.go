// Package ingest is the HTTP side: it authenticates, bounds, decodes and
// classifies what agents send, and answers from the engine.
//
// It remembers nothing between two requests. Whatever needs history is judged
// by package breaker, whatever needs a database is reached through the small
// interfaces Journal and History. It is not a client and not a proxy: calls to
// machines and models never pass through here.
package ingest
