// Package digest turns numbers into the daily report: which machines and
// models were the flakiest and why, as Telegram text, an HTML page and JSON,
// and knows at which moment each chat's day is due.
//
// It reads nothing itself and sends nothing: a Source gives it numbers, a
// Ledger stores what is due.
package digest
