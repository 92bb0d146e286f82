// Package bot decides what people are told and when, and tells them: the alert
// policy (pure, driven by transitions and the clock), the wording, the sender
// that empties the outbox into Telegram, and the commands that people send.
//
// It is not a general Telegram library, and it never decides anything about a
// breaker: a command that changes one asks the engine to.
package bot
