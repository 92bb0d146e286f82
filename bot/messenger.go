package bot

import (
	"context"
	"time"
)

// Outgoing is a message on its way to one chat.
type Outgoing struct {
	Chat    int64
	Thread  int    // topic; 0 and 1 are none
	HTML    string // Telegram HTML; the caption of a photo
	Plain   bool   // send it without markup
	Buttons [][]Button
	Silent  bool
	ReplyTo int64  // Telegram's id of a message in the same chat; 0 for none
	Photo   []byte // PNG
	Ref     string // of the alert, without #; only for printing
	At      time.Time
}

// Messenger carries messages to people. Telegram does, and Terminal prints.
type Messenger interface {
	// Send gives the new message's id.
	Send(ctx context.Context, m Outgoing) (int64, error)
	// Edit replaces text and buttons of a message that was sent; it never sounds.
	Edit(ctx context.Context, id int64, m Outgoing) error
	// Ping tells whether the service answers at all.
	Ping(ctx context.Context) error
}

// maxVariants bounds how often one message is changed and sent again because
// of what it holds.
const maxVariants = 6

// deliver sends a message, or with an id edits one, and mends at once what the
// service cannot take about its content: markup, length, buttons, topic, reply,
// a moved chat. It calls each after the first request, for whoever counts them.
// The error is that of the last request.
func deliver(ctx context.Context, via Messenger, m *Outgoing, edit int64, r *Roster, each func()) (int64, error) {
	limit := length(m.HTML)
	for range maxVariants {
		var (
			id  = edit
			err error
		)
		m.Chat, m.Thread = r.address(m.Chat, m.Thread)
		if edit != 0 {
			err = via.Edit(ctx, edit, *m)
		} else {
			id, err = via.Send(ctx, *m)
		}
		each()
		switch troubleOf(err) {
		case troubleTime: // the messenger has learned: the same again
		case troubleMarkup:
			if m.Plain {
				return 0, err
			}
			m.Plain = true
		case troubleLong:
			if limit /= 2; limit < 40 {
				return 0, err
			}
			m.HTML = Shorten(m.HTML, limit)
		case troubleButtons:
			if len(m.Buttons) == 0 {
				return 0, err
			}
			m.Buttons = nil
		case troubleReply:
			if m.ReplyTo == 0 {
				return 0, err
			}
			m.ReplyTo = 0
		case troubleThread:
			if m.Thread == 0 {
				return 0, err
			}
			if r.loseThread(m.Chat, m.Thread) {
				m.HTML += "\n(topic " + itoa(int64(m.Thread)) + " is gone or closed: messages come here from now on)"
			}
		case troubleMoved:
			to := moveOf(err)
			if to == 0 || edit != 0 {
				return 0, err
			}
			if err := r.move(ctx, m.Chat, to); err != nil {
				return 0, err
			}
			m.ReplyTo = 0 // ids of the old group mean nothing in the new one
		default:
			return id, err
		}
	}
	return 0, &Error{Method: "sendMessage", Reason: "no form of this message was accepted", trouble: troubleRejected}
}
