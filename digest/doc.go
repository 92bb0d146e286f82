// Package digest turns numbers into the daily report: which machines and
// models were the flakiest and why, as Telegram text, an HTML page and JSON,
// and knows at which moment each chat's day is due.
//
// Build is the heart and pure: Data of two windows become a Report, whose doc
// comment says how outages are joined, blame is given and rows are ranked. Text,
// Ranking, HTML and JSON are forms of one Report and decide nothing. Schedule
// and Period find windows, in which a local day may have 23, 24 or 25 hours;
// consecutive windows meet exactly. Runner is asked each minute what is owed.
// Advise goes the other way: from what is known of a service to a rule for it.
//
// It reads nothing itself and sends nothing: a Source gives it numbers, a
// Ledger stores what is due. It is not for alerts, which are told at once.
package digest
