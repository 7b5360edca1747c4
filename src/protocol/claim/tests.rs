//! What a claim sends, word by word, and what it believes of an answer.

use super::super::answer::{Acquired, Busy, acquired};
use super::super::guard::extended;
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

fn request() -> Request {
    Request {
        who: Who::default(),
        ttl: SECOND * 30,
        limit: Limit::EXCLUSIVE,
        queue: QueueOptions::default(),
        once_per: Duration::ZERO,
        repair_ttl: false,
        restart_grace: Duration::ZERO,
    }
}

/// What follows the arguments that all scripts have, but for the entry, which is another test's.
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

#[test]
fn a_request_says_what_is_asked_for_and_how_its_waiter_hears_of_its_turn() {
    let place = |polls| Place {
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
        let needs = Needs {
            sharded,
            replicated: false,
        };
        let call = claim().acquire_call(&request(), place.as_ref(), needs);
        assert_eq!(
            own_args(&call),
            [
                "token", "30000", "1", how, ticket, "0", "fifo", "0", "", "0", "0"
            ]
        );
    }
    let request = Request {
        queue: QueueOptions {
            priority: -3,
            lifo: true,
            supersede: Supersede::HoldersToo,
            number: Some(12),
        },
        once_per: SECOND * 60,
        repair_ttl: true,
        restart_grace: SECOND * 2,
        ..request()
    };
    let own_args = |request: &Request, replicated| {
        let needs = Needs {
            sharded: false,
            replicated,
        };
        own_args(&claim().acquire_call(request, None, needs))
    };
    let words = [
        "token", "30000", "1", "", "", "-3", "lifo", "2", "12", "60000", "1",
    ];
    assert_eq!(own_args(&request, false), [&words[..], &["2000"]].concat());
    assert_eq!(
        own_args(&request, true),
        [&words[..], &["2000", "1"]].concat()
    );
    let request = Request {
        restart_grace: Duration::ZERO,
        ..request
    };
    assert_eq!(own_args(&request, false), words);
    assert_eq!(own_args(&request, true), [&words[..], &["", "1"]].concat());
}

#[test]
fn a_renewal_a_check_and_a_release_say_what_they_are_for() {
    let claim = claim();
    for (instance, notify, args) in [
        (None, false, ["token", "30000", "", "0"]),
        (Some(""), false, ["token", "30000", "=", "0"]),
        (Some("i"), true, ["token", "30000", "=i", "1"]),
    ] {
        let call = claim.renewal(SECOND * 30, instance, notify);
        assert_eq!(own_args(&call), args);
    }
    assert_eq!(own_args(&claim.check_call(SECOND * 30)), ["token", "30000"]);
    let finished = ReleaseMode::Finished {
        outcome: HoldOutcome::Status(3),
        keep_for: SECOND,
    };
    for (mode, args) in [
        (ReleaseMode::Unused, ["token", "0", "", "0"]),
        (ReleaseMode::ByJob, ["token", "1", "released", "0"]),
        (finished, ["token", "0", "status:3", "1000"]),
    ] {
        assert_eq!(own_args(&claim.release_call(&mode)), args);
    }
    let keeping = claim.keeping(SECOND);
    assert_eq!(keeping.keys, [b"redlock:deploy".to_vec()]);
    assert_eq!(keeping.args, [b"token".to_vec(), b"1000".to_vec()]);
}

/// An answer that the lock is busy, as far as it is always the same.
fn busy_answer(ticket: Value, freeze: Value, restart: Value) -> Value {
    fields(&[
        Value::Int(0),
        Value::Int(1_000),
        Value::Int(2),
        ticket,
        Value::Int(1),
        Value::Int(-1),
        Value::Int(1),
        text("a9993e364706"),
        Value::Nil,
        freeze,
        Value::Int(0),
        Value::Int(1),
        restart,
    ])
}

fn busy(answer: Value) -> Busy {
    match acquired(answer) {
        Ok(Acquired::Busy(busy)) => busy,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_busy_lock_is_read_field_by_field() {
    let found = busy(busy_answer(text("7"), Value::Nil, Value::Nil));
    assert_eq!((found.now_ms, found.ahead, found.holders), (1_000, 2, 1));
    assert_eq!((found.ticket, found.left), (Some(7), None));
    assert!(found.polls && found.granted && !found.repaired);
    assert_eq!(found.id, "a9993e364706");
    for none in [Value::Nil, text("")] {
        assert_eq!(busy(busy_answer(none, Value::Nil, Value::Nil)).ticket, None);
    }
    assert!(acquired(busy_answer(text("x"), Value::Nil, Value::Nil)).is_err());
}

#[test]
fn a_freeze_says_since_when_it_keeps_all_out_and_else_a_restart_does() {
    let who = r#"{"host":"h","user":"u","pid":1,"command":["c"]}"#;
    let freeze = || text(&format!("9000 500 {who}"));
    let restart = || text("8000 400");
    for (freeze, restart, since) in [
        (freeze(), restart(), Some(500)),
        (freeze(), Value::Nil, Some(500)),
        (Value::Nil, restart(), Some(400)),
        (Value::Nil, Value::Nil, None),
    ] {
        let found = busy(busy_answer(Value::Nil, freeze, restart));
        assert_eq!(found.blocked_since(), since);
    }
}

#[test]
fn a_grant_is_believed_only_in_its_own_shape() {
    let held = [Value::Int(1), text("12"), Value::Int(1), Value::Int(-1)];
    assert!(matches!(
        acquired(fields(&held)),
        Ok(Acquired::Held {
            fence: 12,
            slot: 1,
            success: None
        })
    ));
    let since = [Value::Int(3), Value::Int(2_000)];
    let done = acquired(fields(&since));
    assert!(matches!(done, Ok(Acquired::RecentSuccess(ago)) if ago == SECOND * 2));
    let by = |kind| acquired(fields(&[Value::Int(kind), Value::Nil]));
    assert!(matches!(by(2), Ok(Acquired::Superseded(_))));
    assert!(matches!(by(4), Ok(Acquired::Removed(_))));
    assert!(by(1).is_err() && by(5).is_err());
    // Shorter, longer, or with something else in its place.
    assert!(acquired(fields(&held[..3])).is_err());
    assert!(acquired(fields(&[&held[..], &[Value::Nil]].concat())).is_err());
    assert!(acquired(Value::Int(1)).is_err());
    for place in 0..held.len() {
        let mut other = held.clone();
        other[place] = text("x");
        assert!(acquired(fields(&other)).is_err(), "{place}");
    }
}

/// Answers of renew, check and release, one of each shape.
fn shapes() -> [(&'static str, Value); 8] {
    let ms = Value::Int(900);
    let number = Value::Int(1);
    let renewal = [
        &[Value::Int(1), ms.clone(), number.clone()],
        &[number.clone(), number.clone(), Value::Nil][..],
    ];
    let check = [Value::Int(1), ms.clone(), Value::Nil, Value::Int(0)];
    let guarding = [
        Value::Int(1),
        ms.clone(),
        Value::Int(30_000),
        Value::Int(7),
        Value::Int(1),
        Value::Int(1),
        Value::Nil,
        Value::BulkString(b"token".to_vec()),
    ];
    [
        ("renewed", fields(&renewal.concat())),
        ("checked", fields(&check)),
        ("guarded", fields(&guarding)),
        ("released", fields(&[Value::Int(1)])),
        ("kept", fields(&[Value::Int(3), ms, Value::Int(0)])),
        ("before", fields(&[Value::Int(2)])),
        ("lost", fields(&[Value::Int(0), Value::Nil, Value::Nil])),
        ("nothing", fields(&[])),
    ]
}

#[test]
fn no_operation_takes_the_answer_of_another_for_its_own() {
    for (name, answer) in shapes() {
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
            "renewed" | "checked" | "guarded" | "nothing" => "no answer",
            own => own,
        };
        assert_eq!(is, expected);
    }
}

#[test]
fn what_is_left_of_a_lease_is_read_from_its_own_field() {
    for (_, answer) in &shapes()[..1] {
        let state = renewed(answer.clone());
        assert!(matches!(
            state,
            Ok(LeaseState::Held { left, cancelled_by: None, is_grant: false })
                if left == Duration::from_millis(900)
        ));
    }
    let check = |left: Value, is_grant| {
        checked(fields(&[
            Value::Int(1),
            left,
            Value::Nil,
            Value::Int(is_grant),
        ]))
    };
    for is_grant in [0, 1] {
        let state = check(Value::Int(900), is_grant);
        assert!(matches!(
            state,
            Ok(LeaseState::Held { left, cancelled_by: None, is_grant: found })
                if left == Duration::from_millis(900) && found == (is_grant == 1)
        ));
    }
    // Another operation has digits there.
    assert!(check(text("900"), 0).is_err());
    assert!(check(Value::Int(900), 2).is_err());
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
