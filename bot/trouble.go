package bot

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// trouble is what an answer of Telegram means for what happens next.
type trouble uint8

const (
	troubleNone     trouble = iota
	troubleMarkup           // send the same as plain text
	troubleTime             // a server that does not know tg-time
	troubleLong             // shorten by whole rows
	troubleButtons          // send without buttons
	troubleReply            // send without replying
	troubleThread           // send without the topic
	troubleSame             // an edit that changes nothing: success
	troubleEditGone         // the message cannot be edited any more
	troubleMoved            // the group has a new id
	troubleChat             // the chat is out until somebody says otherwise
	troubleRights           // the chat is paused and tried again slowly
	troubleStale            // a button pressed too long ago: nothing to do
	troubleConfig           // the token or the address is wrong
	troubleConflict         // another program polls with this token
	troubleWebhook          // a webhook is set, so polling is refused
	troubleLimited          // wait as told
	troubleUnknown          // perhaps delivered
	troubleOffline          // certainly not delivered
	troubleRejected         // some other refusal: trying again is of no use
)

// answers is the table of Telegram's refusals. The first row whose code (0 for
// any) and fragment fit decides; descriptions change case between servers, so
// they are compared in lower case.
var answers = []struct {
	code     int
	fragment string
	trouble  trouble
}{
	{429, "", troubleLimited},
	{401, "", troubleConfig},
	{404, "", troubleConfig},
	{421, "", troubleConfig},
	{409, "webhook is active", troubleWebhook},
	{409, "", troubleConflict},
	{400, "message is not modified", troubleSame}, // it goes on to speak of reply markup
	{400, "unsupported start tag \"tg-time\"", troubleTime},
	{400, "can't parse entities", troubleMarkup},
	{400, "strings must be encoded in utf-8", troubleMarkup},
	{0, "message is too long", troubleLong},
	{0, "text is too long", troubleLong},
	{0, "caption is too long", troubleLong},
	{0, "caption_too_long", troubleLong},
	{0, "message_too_long", troubleLong},
	{400, "button_data_invalid", troubleButtons},
	{400, "button_type_invalid", troubleButtons},
	{400, "reply markup", troubleButtons},
	{400, "inline keyboard", troubleButtons},
	{400, "message to edit not found", troubleEditGone},
	{400, "message can't be edited", troubleEditGone},
	{400, "message_id_invalid", troubleEditGone},
	{400, "message to be replied not found", troubleReply},
	{400, "message to reply not found", troubleReply},
	{400, "replied message not found", troubleReply},
	{400, "message thread not found", troubleThread},
	{400, "topic_closed", troubleThread},
	{400, "topic_deleted", troubleThread},
	{400, "upgraded to a supergroup", troubleMoved},
	{400, "chat not found", troubleChat},
	{400, "chat_id is empty", troubleChat},
	{400, "peer_id_invalid", troubleChat},
	{400, "not enough rights", troubleRights},
	{400, "have no rights", troubleRights},
	{400, "no write access", troubleRights},
	{400, "chat_write_forbidden", troubleRights},
	{400, "query is too old", troubleStale},
	{400, "query_id_invalid", troubleStale},
	{403, "not enough rights", troubleRights},
	{403, "", troubleChat},
	{400, "", troubleRejected},
}

// Error is a request to Telegram that failed. Its text never holds the token.
type Error struct {
	Method     string
	Code       int    // Telegram's, or HTTP's when the body was none of Telegram's; 0 without an answer
	Reason     string // Telegram's description, or the transport's error
	RetryAfter time.Duration
	MoveTo     int64 // the supergroup that the group has become
	trouble    trouble
	cause      error // context errors only: others may hold the token
}

// Error names the method, the code and the reason.
func (e *Error) Error() string {
	if e.Code == 0 {
		return fmt.Sprintf("telegram: %s: %s", e.Method, e.Reason)
	}
	return fmt.Sprintf("telegram: %s: %d %s", e.Method, e.Code, e.Reason)
}

// Unwrap gives the context's error when that ended the request.
func (e *Error) Unwrap() error { return e.cause }

// troubleOf tells what an error of a Messenger means. One that is no *Error,
// such as a terminal's, is of no use to repeat.
func troubleOf(err error) trouble {
	if err == nil {
		return troubleNone
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.trouble
	}
	return troubleRejected
}

func classify(code int, description string) trouble {
	switch {
	case code >= 500:
		return troubleUnknown
	case code >= 300 && code < 400:
		return troubleConfig
	}
	lower := strings.ToLower(description)
	for _, row := range answers {
		if (row.code == 0 || row.code == code) && strings.Contains(lower, row.fragment) {
			return row.trouble
		}
	}
	return troubleRejected
}
