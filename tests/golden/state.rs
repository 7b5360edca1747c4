//! Answers of the server about locks of each kind, at a fixed time.

use redis::Value;
use redis::Value::{Int, Nil};

use super::history;
use super::inspect::inspected;
use super::{Inspected, LockHistory};

/// Server's clock in all answers, in milliseconds since 1970.
pub const NOW: u64 = 1_795_000_000_000;

/// A client with all fields, one with few, a script, and one whose texts try to control a terminal and a CI agent.
const FULL: &str = r#"{"host":"ci-7","user":"ci","pid":4121,"as":"acme/shop deploy #1234","command":["./deploy.sh","--to","it's prod"],"reason":"release-1.2","url":"https://ci.example.com/jobs/7","ttl":30000,"instance":"i:1","kill_after":9000}"#;
const BRIEF: &str =
    r#"{"host":"web-1","user":"root","pid":9,"command":["x"],"ttl":30000,"instance":"i:2"}"#;
const SCRIPT: &str = r#"{"host":"web-2","user":"bob","pid":10,"command":[],"ttl":60000}"#;
const EVIL: &str = r###"{"host":"h\u001b[2J","user":"\u202e","pid":4294967295,"command":["a\nb","##vso[x]"],"reason":"::error::\"\\","url":"javascript:1","instance":"i:3"}"###;

fn text(text: impl Into<Vec<u8>>) -> Value {
    Value::BulkString(text.into())
}

fn list(values: impl IntoIterator<Item = Value>) -> Value {
    Value::Array(values.into_iter().collect())
}

fn int(ms: u64) -> Value {
    Int(ms.cast_signed())
}

/// Returns a hold with the entry `limit slot waited phase` and this client.
fn hold(id: u32, left: i64, entry: &str, who: &str) -> [Value; 5] {
    let entry = format!("70{id} {} {entry} {who}", NOW - 90_000);
    let id = format!("c0ffee0000{id:02}");
    [text(id), Int(left), text(entry), list([]), Nil]
}

/// Answer of `inspect`.
struct Answer {
    name: &'static str,
    kind: &'static str,
    holds: Vec<[Value; 5]>,
    waiting: Vec<(&'static str, &'static str)>,
    frozen: Value,
    lasted: [i64; 3],
    remembered: [Value; 9],
}

impl Answer {
    fn of(name: &'static str, kind: &'static str, holds: Vec<[Value; 5]>) -> Self {
        let remembered = [const { Nil }; 9];
        let (waiting, frozen, lasted) = (Vec::new(), Nil, [-1; 3]);
        Self {
            name,
            kind,
            holds,
            waiting,
            frozen,
            lasted,
            remembered,
        }
    }

    fn read(self) -> Inspected {
        let waiting = (0..).zip(self.waiting).map(|(number, (limit, who))| {
            let since = NOW - 40_000 - number;
            let entry = format!("{} {limit} {since} 1 {who}", NOW + 9000);
            list([text(format!("beef0000000{number}")), text(entry)])
        });
        let lasted = self.lasted.into_iter().filter(|ms| *ms >= 0).map(Int);
        let answer = list([
            text(self.kind),
            text("1795000000000007"),
            int(NOW),
            list(self.holds.into_iter().map(list)),
            list(waiting),
            self.frozen,
            list(lasted),
            list([text(""), text("")]),
            list(self.remembered),
        ]);
        let name = self.name.parse().unwrap();
        inspected(name, answer).unwrap()
    }
}

/// Returns a lock of each kind.
pub fn locks() -> Vec<Inspected> {
    let mut deploy = Answer::of(
        "deploy",
        "string",
        vec![hold(1, 21_000, "1 1 250 guarded:2", FULL)],
    );
    let guard = |until: u64, who| {
        let end = NOW + until;
        text(format!("{end} c0ffee000001 {} {who}", NOW - 5000))
    };
    deploy.holds[0][3] = list([guard(15_000, BRIEF), guard(16_000, SCRIPT)]);
    let request = format!(r#"{{"asked":{},{}"#, NOW - 1500, &FULL[1..]);
    deploy.holds[0][4] = text(request);
    deploy.waiting = vec![("1", FULL), ("3", BRIEF), ("1000000000", SCRIPT)];
    let (since, until) = (NOW - 3_600_000, NOW + 86_400_000);
    deploy.frozen = text(format!("{until} {since} {FULL}"));
    deploy.lasted = [200_000, 240_000, 300_000];
    let counts = (1..=7).map(|count| text(count.to_string()));
    let freezes = format!("{since}-{until} {}-{}", since - 9000, since - 5000);
    let remembered = [text((NOW - 7000).to_string())].into_iter().chain(counts);
    let remembered = remembered.chain([text(freezes)]);
    deploy.remembered = remembered.collect::<Vec<_>>().try_into().unwrap();

    let mut readers = vec![
        hold(2, 25_000, "1000000000 0 0 held", BRIEF),
        hold(3, 8000, "1000000000 0 0 held", FULL),
    ];
    // Its last renewal seems to be earlier, because the server rounds remaining times.
    let entry = format!("703 {} 1000000000 0 0 held {FULL}", NOW - 20_000);
    readers[1][2] = text(entry);
    let slots = vec![
        hold(4, 25_000, "3 1 0 held", BRIEF),
        hold(5, 9000, "3 2 0 kept", BRIEF),
        hold(6, 2000, "3 3 700 granted", BRIEF),
    ];
    let mut foreign = hold(7, 5000, "", "");
    foreign[2] = Nil;
    let mut endless = hold(8, -1, "", "");
    endless[2] = text("another format");
    let mut frozen = Answer::of("frozen", "none", Vec::new());
    frozen.frozen = text(format!("{until} {since} {BRIEF}"));
    let mut free = Answer::of("free", "none", Vec::new());
    free.remembered[0] = text((NOW - 100_000_000).to_string());
    free.remembered[1] = text("12");
    let mut evil = Answer::of(
        "evil\"\\<name>",
        "string",
        vec![hold(9, 20_000, "1 1 0 held", EVIL)],
    );
    evil.waiting = vec![("1", EVIL)];
    let script = hold(10, 20_000, "1 1 0 held", SCRIPT);
    let all = [
        deploy,
        Answer::of("readers", "string", readers),
        Answer::of("slots", "string", slots),
        Answer::of("foreign", "string", vec![foreign]),
        Answer::of("endless", "string", vec![endless]),
        Answer::of("queue", "list", Vec::new()),
        Answer::of("script", "string", vec![script]),
        frozen,
        free,
        evil,
    ];
    all.into_iter().map(Answer::read).collect()
}

/// Returns the history of "deploy": a hold with each outcome, and a run without the lock for each reason.
pub fn histories() -> Vec<LockHistory> {
    let since = |number: u64| NOW - 1_000_000 + 10_000 * number;
    let ends = [
        ("status:0", "", FULL),
        ("status:3", "", BRIEF),
        ("signal:15", "", BRIEF),
        ("timeout", "", BRIEF),
        ("lost", "", BRIEF),
        ("cancelled", FULL, BRIEF),
        ("cancelled", "", BRIEF),
        ("forced", BRIEF, FULL),
        ("expired", "", BRIEF),
        ("released", "", SCRIPT),
        ("status:0", "", EVIL),
    ];
    let over = (1..).zip(ends).map(|(number, (how, by, who))| {
        let (began, slot) = (since(number), number % 3 + 1);
        let entry = format!("{number} {began} 3 {slot} 250 guarded:2 {who}");
        let ended = began + 4000;
        text(format!(
            "c0ffee{number:06} {ended} {how} {} {by}{entry}",
            by.len()
        ))
    });
    let live = [(1, NOW, BRIEF), (0, NOW - 500, FULL), (2, NOW - 400, BRIEF)];
    let live = (20..).zip(live).map(|(number, (how, when, who))| {
        let entry = format!("{number} {} 1000000000 0 0 held {who}", since(number));
        list([
            text(format!("c0ffee{number:06}")),
            Int(how),
            int(when),
            text(entry),
        ])
    });
    let reasons = [
        ("recent", FULL),
        ("busy", BRIEF),
        ("timeout", FULL),
        ("crowded", ""),
        ("frozen", BRIEF),
        ("superseded", FULL),
        ("removed", BRIEF),
        ("deadlock", ""),
    ];
    let skipped = (1..).zip(reasons).map(|(number, (why, by))| {
        text(format!(
            "{} {why} 700 {} {by}{FULL}",
            since(30 + number),
            by.len()
        ))
    });
    let answer = list([int(NOW), list(over), list(live), list(skipped)]);
    vec![history::parse(200, &"deploy".parse().unwrap(), answer).unwrap()]
}
