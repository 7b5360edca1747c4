//! Tests of the exact calls that a claim sends, and of the answers that it accepts.

use super::super::answer::{Acquired, Busy, acquired};
use super::super::client::tests::locks_of;
use super::super::guard::extended;
use redis::Value;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn claim() -> Claim {
    let name: super::super::Name = "deploy".parse().unwrap();
    let lock = Lock {
        keys: super::super::name::Keys::new("redlock:", &name),
        name,
        history: 200,
    };
    Claim::resume(lock, Token::read(b"token".to_vec()).unwrap())
}

/// Returns a usual request.
pub fn request() -> Request {
    Request {
        who: Who::default(),
        ttl: SECOND * 30,
        limit: Limit::EXCLUSIVE,
        queue: QueueOptions::default(),
        once_per: Duration::ZERO,
        once_key: None,
        repair_ttl: false,
    }
}

/// Returns the arguments that follow those of all scripts, except the entry, which another test covers.
fn own_args(call: &Call) -> Vec<String> {
    let text = |arg: &Vec<u8>| String::from_utf8(arg.clone()).unwrap();
    let own = call.args[3..].iter().map(text);
    own.filter(|arg| !arg.starts_with('{')).collect()
}

fn text(text: &str) -> Value {
    Value::BulkString(text.as_bytes().to_vec())
}

fn fields(fields: &[Value]) -> Value {
    Value::Array(fields.to_vec())
}

/// Returns an answer as a server sends it, with spaces instead of line ends.
fn sent(answer: &str) -> Value {
    let bytes = answer.replace(' ', "\r\n") + "\r\n";
    redis::parse_redis_value(bytes.as_bytes()).expect("it is a reply")
}

#[test]
fn a_request_says_what_is_asked_for_and_how_its_waiter_hears_of_its_turn() {
    let place = |polls| QueuePlace {
        ticket: Some(7),
        polls,
    };
    for (place, sharded, how, ticket) in [
        (None, false, "", ""),
        (None, true, "", ""),
        (Some(place(false)), false, "listen", "7"),
        (Some(place(false)), true, "shard", "7"),
        (Some(place(true)), false, "poll", "7"),
        (Some(place(true)), true, "poll", "7"),
    ] {
        let needs = ServerTraits {
            sharded,
            replicated: false,
        };
        let call = claim().acquire_call(&request(), place.as_ref(), needs);
        assert_eq!(
            own_args(&call),
            ["token", "30000", "1", how, ticket, "0", "", "0", "0"]
        );
    }
    let request = Request {
        queue: QueueOptions {
            most_waiting: None,
            supersede: Supersede::HoldersToo,
            number: Some(12),
        },
        once_per: SECOND * 60,
        repair_ttl: true,
        ..request()
    };
    let own_args = |request: &Request, replicated| {
        let needs = ServerTraits {
            sharded: false,
            replicated,
        };
        own_args(&claim().acquire_call(request, None, needs))
    };
    let words = ["token", "30000", "1", "", "", "2", "12", "60000", "1"];
    assert_eq!(own_args(&request, false), words);
    assert_eq!(own_args(&request, true), [&words[..], &["1"]].concat());
}

#[test]
fn a_renewal_a_check_and_a_release_say_what_they_are_for() {
    let claim = claim();
    for (notify, args) in [
        (false, ["token", "30000", "0"]),
        (true, ["token", "30000", "1"]),
    ] {
        let call = claim.renewal(SECOND * 30, notify);
        assert_eq!(own_args(&call), args);
    }
    assert_eq!(own_args(&claim.check_call(SECOND * 30)), ["token", "30000"]);
    let finished = ReleaseMode::Finished {
        outcome: HoldOutcome::Status(3),
        keep_for: SECOND,
    };
    for (mode, args) in [
        (
            ReleaseMode::Unused { is_pending: true },
            &["token", "0", "", "0"][..],
        ),
        (
            ReleaseMode::Unused { is_pending: false },
            &["token", "0", "", "0", "1"],
        ),
        (ReleaseMode::ByJob, &["token", "1", "released", "0"]),
        (finished, &["token", "0", "status:3", "1000"]),
    ] {
        assert_eq!(own_args(&claim.release_call(&mode)), args);
    }
    let prolonging = claim.prolonging(SECOND * 30);
    let notice = format!("{{redlock:deploy}}:cancelled:{}", claim.token().id());
    let keys = ["redlock:deploy", "{redlock:deploy}:meta", &notice];
    assert_eq!(prolonging.keys, keys.map(Vec::from));
    let args = ["token", "30000", "2592030000"];
    assert_eq!(prolonging.args, args.map(Vec::from));
    let keeping = claim.keeping(SECOND);
    assert_eq!(keeping.keys, [b"redlock:deploy".to_vec()]);
    assert_eq!(keeping.args, [b"token".to_vec(), b"1000".to_vec()]);
}

#[test]
fn the_short_script_takes_a_lock_only_for_a_first_request_that_wants_nothing_else() {
    let alone = ServerTraits {
        sharded: false,
        replicated: false,
    };
    let takes = |change: fn(&mut Request)| {
        let mut request = request();
        change(&mut request);
        super::takes(&request, None, alone)
    };
    assert!(takes(|_| ()));
    assert!(takes(|it| it.ttl = SECOND * 86_400));
    assert!(!takes(|it| it.ttl = SECOND * 86_401));
    assert!(!takes(|it| it.limit = Limit::SHARED));
    assert!(!takes(|it| it.queue.supersede = Supersede::Waiters));
    assert!(!takes(|it| it.queue.number = Some(1)));
    assert!(!takes(|it| it.once_key = Some("key".to_owned())));
    assert!(!takes(|it| it.once_per = SECOND));
    let waits = QueuePlace::default();
    assert!(!super::takes(&request(), Some(&waits), alone));
    let replicated = ServerTraits {
        replicated: true,
        ..alone
    };
    assert!(!super::takes(&request(), None, replicated));
}

#[test]
fn the_short_script_frees_a_lock_only_after_a_run_that_ended_by_itself_and_keeps_nothing() {
    let finished = |outcome, keep_for| ReleaseMode::Finished { outcome, keep_for };
    let (ended, nothing) = (HoldOutcome::Status(0), Duration::ZERO);
    let mut claim = claim();
    assert!(claim.frees(&finished(ended, nothing)));
    assert!(!claim.frees(&finished(ended, SECOND)));
    assert!(!claim.frees(&finished(HoldOutcome::Lost, nothing)));
    assert!(!claim.frees(&ReleaseMode::ByJob));
    assert!(!claim.frees(&ReleaseMode::UNUSED));
    // The short script always writes to the history.
    claim.lock.history = 0;
    assert!(!claim.frees(&finished(ended, nothing)));
}

/// Returns an answer that the lock is busy, with these fields.
fn busy_answer(ticket: Value, freeze: Value, stopping: Value) -> Value {
    let same = "*13 :0 :1000 :2 _ :1 :-1 :1 $12 a9993e364706 _ _ :0 :1 _";
    let Value::Array(mut fields) = sent(same) else {
        panic!("it is a list");
    };
    (fields[3], fields[9], fields[12]) = (ticket, freeze, stopping);
    Value::Array(fields)
}

fn busy(answer: Value) -> Busy {
    match acquired(answer) {
        Ok(Acquired::Busy(busy)) => busy,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_busy_lock_is_read_field_by_field() {
    let lock = busy(busy_answer(text("7"), Value::Nil, Value::Nil));
    assert_eq!((lock.now_ms, lock.ahead, lock.holders), (1_000, 2, 1));
    assert_eq!((lock.ticket, lock.left), (Some(7), None));
    assert!(lock.polls && lock.is_behind_dead && !lock.repaired);
    assert_eq!(lock.id, "a9993e364706");
    for none in [Value::Nil, text("")] {
        assert_eq!(busy(busy_answer(none, Value::Nil, Value::Nil)).ticket, None);
    }
    assert!(acquired(busy_answer(text("x"), Value::Nil, Value::Nil)).is_err());
}

#[test]
fn a_freeze_says_since_when_others_wait_and_else_a_request_to_stop_does() {
    let who = r#"{"host":"h","user":"u","pid":1,"command":["c"]}"#;
    let stop = || text(r#"{"asked":300,"host":"h","user":"u","pid":1,"command":["c"]}"#);
    let freeze = || text(&format!("9000 500 {who}"));
    for (freeze, stop, since) in [
        (freeze(), stop(), Some(500)),
        (freeze(), Value::Nil, Some(500)),
        (Value::Nil, stop(), Some(300)),
        (Value::Nil, text(who), None),
        (Value::Nil, Value::Nil, None),
    ] {
        let lock = busy(busy_answer(Value::Nil, freeze, stop));
        assert_eq!(lock.blocked_since(), since);
    }
}

#[test]
fn a_grant_is_believed_only_in_its_own_shape() {
    let read = |answer| acquired(sent(answer));
    let held = read("*3 :1 $2 12 :1");
    assert!(matches!(held, Ok(Acquired::Held { fence: 12, slot: 1 })));
    for (answer, seconds) in [("*2 :3 :2000", 2), ("*2 :3 :0", 0), ("*2 :3 :-5", 0)] {
        let is_right =
            matches!(read(answer), Ok(Acquired::RecentSuccess(ago)) if ago == SECOND * seconds);
        assert!(is_right, "{answer}");
    }
    assert!(matches!(read("*2 :2 _"), Ok(Acquired::Superseded(_))));
    assert!(matches!(read("*2 :4 _"), Ok(Acquired::Removed(_))));
    let by = r#"$31 {"host":"b","user":"u","pid":1}"#;
    let host = |kind| match acquired(sent(&format!("*2 :{kind} {by}"))) {
        Ok(Acquired::Superseded(who) | Acquired::Removed(who)) => who.host,
        other => panic!("{other:?}"),
    };
    assert_eq!([host(2), host(4)], ["b", "b"]);
    // Shorter, longer, or with another type of field.
    for other in [
        "*2 :3 _",
        "*2 :1 _",
        "*2 :5 _",
        "*2 :1 $2 12",
        "*4 :1 $2 12 :1 _",
        ":1",
        "*3 $1 x $2 12 :1",
        "*3 :1 $1 x :1",
        "*3 :1 $2 12 $1 x",
    ] {
        assert!(read(other).is_err(), "{other}");
    }
    // A full queue reports how many runs wait.
    assert!(matches!(read("*2 :5 :3"), Ok(Acquired::Crowded(3))));
}

/// Answers of renew, check and release, one of each shape.
const SHAPES: [(&str, &str); 9] = [
    ("renewed", "*6 :1 :900 :1 :1 :1 _"),
    ("checked", "*3 :1 :900 _"),
    ("guarded", "*7 :1 :900 :30000 :7 :1 :1 _"),
    ("released", "*1 :1"),
    ("kept", "*3 :3 :900 :0"),
    ("before", "*1 :2"),
    ("lost", "*3 :0 _ _"),
    ("nothing", "*0"),
    ("prolonged", ":900"),
];

#[test]
fn no_operation_takes_the_answer_of_another_for_its_own() {
    for (name, answer) in SHAPES.map(|(name, answer)| (name, sent(answer))) {
        let prolonging = prolonged(&answer, Duration::from_millis(900));
        assert_eq!(prolonging.is_ok(), name == "prolonged");
        let guarding = extended(answer.clone());
        assert_eq!(
            matches!(guarding, Ok(LeaseState::Held { .. })),
            name == "guarded"
        );
        let renewal = renewed(answer.clone());
        let check = checked(answer.clone());
        let release = released(answer);
        assert_eq!(
            matches!(renewal, Ok(LeaseState::Held { .. })),
            name == "renewed"
        );
        assert_eq!(
            matches!(check, Ok(LeaseState::Held { .. })),
            name == "checked"
        );
        for state in [renewal, check] {
            assert_eq!(matches!(state, Ok(LeaseState::Released)), name == "before");
            assert_eq!(matches!(state, Ok(LeaseState::Lost(_))), name == "lost");
        }
        let is = match release {
            Ok(Released::Now) => "released",
            Ok(Released::Kept { left, .. }) if left == Duration::from_millis(900) => "kept",
            Ok(Released::Before) => "before",
            Ok(Released::NotOurs(_)) => "lost",
            _ => "no answer",
        };
        let expected = match name {
            "renewed" | "checked" | "guarded" | "nothing" | "prolonged" => "no answer",
            own => own,
        };
        assert_eq!(is, expected);
    }
}

#[test]
fn what_is_left_of_a_lease_is_read_from_its_own_field() {
    let [(_, renewal), (_, check), ..] = SHAPES;
    for state in [renewed(sent(renewal)), checked(sent(check))] {
        assert!(matches!(
            state,
            Ok(LeaseState::Held { left, cancelled_by: None })
                if left == Duration::from_millis(900)
        ));
    }
    // Another operation's answer has digits, or more fields, there.
    for other in ["*3 :1 $3 900 _", "*4 :1 :900 _ :0"] {
        assert!(checked(sent(other)).is_err(), "{other}");
    }
}

#[test]
fn a_loss_names_who_forced_it_and_who_holds_the_lock_now() {
    let run = |host: &str| format!(r#"{{"host":"{host}","user":"u","pid":1,"command":["c"]}}"#);
    let holder = format!("12 1000 1 1 0 held {}", run("theirs"));
    let answer = fields(&[Value::Int(0), text(&run("eve")), text(&holder)]);
    for state in [renewed(answer.clone()), checked(answer)] {
        let Ok(LeaseState::Lost(loss)) = state else {
            panic!("{state:?}");
        };
        assert_eq!(loss.forced_by.unwrap().host, "eve");
        assert_eq!(loss.holder.unwrap().who.host, "theirs");
    }
}

#[test]
fn the_short_script_says_that_the_lease_is_as_long_as_was_asked_for_or_nothing() {
    let read = |answer| prolonged(&answer, SECOND * 30);
    assert!(matches!(
        read(Value::Int(30_000)),
        Ok(Some(LeaseState::Held { left, cancelled_by: None })) if left == SECOND * 30
    ));
    assert!(matches!(read(Value::Int(0)), Ok(None)));
    for other in [-1, 1, 29_999, 30_001] {
        assert!(read(Value::Int(other)).is_err(), "{other}");
    }
}

/// A server's answer to a renewal.
const RENEWED: &str = "*6\r\n:1\r\n:30000\r\n:12\r\n:1\r\n:1\r\n$-1\r\n";
const PROLONGED: &str = ":30000\r\n";
const ASK_RENEW: &str = ":0\r\n";

/// A server that gives these answers over each connection, and then ends; it reports which renewals it got.
struct Script {
    locks: super::super::Locks,
    renewals: thread::JoinHandle<Vec<&'static str>>,
}

impl Script {
    fn with(answers: Vec<Vec<&'static str>>) -> Self {
        let (locks, renewals) = locks_of(move |listener| {
            let mut names = Vec::new();
            for answers in answers {
                let (mut stream, _) = listener.accept().unwrap();
                for answer in answers {
                    let mut bytes = [0; 4096];
                    let read = std::io::Read::read(&mut stream, &mut bytes).unwrap();
                    let request = String::from_utf8_lossy(&bytes[..read]);
                    let scripts = [(&PROLONG, "prolong"), (&RENEW, "renew")];
                    let script = scripts
                        .iter()
                        .find(|(script, _)| request.contains(script.hash));
                    names.push(script.unwrap_or_else(|| panic!("{request}")).1);
                    std::io::Write::write_all(&mut stream, answer.as_bytes()).unwrap();
                }
            }
            names
        });
        Self { locks, renewals }
    }

    fn renewals(self) -> Vec<&'static str> {
        self.renewals.join().unwrap()
    }
}

/// Renews a single lock, which is held.
fn renew(claim: &Claim, client: &mut Client, ttl: Duration) {
    let (states, _) = Claim::renew_all(std::slice::from_ref(claim), client, ttl).unwrap();
    assert!(matches!(states[..], [LeaseState::Held { left, .. }] if left == SECOND * 30));
}

#[test]
fn the_first_renewal_over_a_connection_looks_at_everything_and_so_do_those_where_there_is_more_to_do()
 {
    let server = Script::with(vec![
        vec![RENEWED, PROLONGED, PROLONGED, ASK_RENEW, RENEWED, RENEWED],
        vec![RENEWED, PROLONGED],
    ]);
    let mut client = server.locks.open().unwrap();
    let mut expected = vec!["renew", "prolong", "prolong"];
    for _ in 0..2 {
        renew(&claim(), &mut client, SECOND * 30);
    }
    // The connection moves from thread to thread.
    let mut client = client.hand_over();
    renew(&claim(), &mut client, SECOND * 30);
    expected.extend(["prolong", "renew"]);
    renew(&claim(), &mut client, SECOND * 30);
    // The next renewal doesn't repeat the whole check.
    expected.push("renew");
    renew(&claim(), &mut client, SECOND * 30);
    client.disconnect();
    expected.extend(["renew", "prolong"]);
    for _ in 0..2 {
        renew(&claim(), &mut client, SECOND * 30);
    }
    assert_eq!(server.renewals(), expected);
}

#[test]
fn a_renewal_looks_at_everything_after_an_hour_of_another_lock_and_where_the_lease_is_longer_than_a_day()
 {
    let day = SECOND * 86_400;
    let server = Script::with(vec![vec![RENEWED; 5]]);
    let mut client = server.locks.open().unwrap();
    let other = Claim::resume(claim().lock, Token::read(b"other".to_vec()).unwrap());
    renew(&claim(), &mut client, SECOND * 30);
    renew(&other, &mut client, SECOND * 30);
    let looked = client.looked.as_mut().unwrap();
    looked.at = looked.at.checked_sub(SECOND * 3600).unwrap();
    renew(&other, &mut client, SECOND * 30);
    renew(&other, &mut client, day + SECOND);
    renew(&other, &mut client, day + SECOND);
    assert_eq!(server.renewals(), ["renew"; 5]);
}
