//! The fake answers as a real server does.

use redis::Value;

use super::{Data, Interpreter, Moment};
use crate::lock::scripts::{ACQUIRE, RELEASE};

fn keys() -> Vec<Vec<u8>> {
    let keys = [
        "redlock:a",
        "{redlock:a}:state",
        "{redlock:a}:meta",
        "{redlock:a}:holders",
        "{redlock:a}:queue",
        "{redlock:a}:waiters",
        "{redlock:a}:history",
        "{redlock:}:index",
        "{redlock:a}:slots",
    ];
    keys.iter().map(|key| key.as_bytes().to_vec()).collect()
}

fn words(words: &[&str]) -> Vec<Vec<u8>> {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

fn is_ours(answer: &Value) -> bool {
    matches!(answer, Value::Array(fields) if fields[0] == Value::Int(1))
}

#[test]
fn the_shipped_scripts_take_a_lock_hand_it_on_and_free_it() {
    let interpreter = Interpreter::new();
    let mut data = Data::new();
    let mut moment = Moment::at(1_577_836_800_000_000);
    let who = r#"{"host":"h","user":"u","pid":1,"command":["c"],"instance":"i"}"#;
    let eval = |data: &mut Data, moment: &Moment, source, args: &[&str]| {
        let common = ["a", "{redlock:a}:", "200"];
        let args = words(&[&common, args].concat());
        interpreter.eval(data, moment, source, &keys(), &args)
    };
    let acquire = |token, place| {
        [
            token, "10000", "1", who, place, "", "0", "fifo", "0", "", "0", "0",
        ]
    };
    let first = eval(&mut data, &moment, ACQUIRE.source, &acquire("t1", ""));
    assert!(is_ours(&first.answer), "{first:?}");
    let channel = {
        let digest = sha1_smol::Sha1::from("t2").digest().to_string();
        format!("{{redlock:a}}:{}", &digest[..12]).into_bytes()
    };
    moment.listeners.insert(channel.clone(), 1);
    let second = eval(&mut data, &moment, ACQUIRE.source, &acquire("t2", "listen"));
    assert!(!is_ours(&second.answer), "{second:?}");
    moment.clock_us += 1_000_000;
    let release = ["t1", "0", "status:0", "0"];
    let released = eval(&mut data, &moment, RELEASE.source, &release);
    assert!(is_ours(&released.answer), "{released:?}");
    assert_eq!(released.published[0].0, channel);
    assert!(released.published[0].1.starts_with(b"granted "));
    let confirmed = eval(&mut data, &moment, ACQUIRE.source, &acquire("t2", "listen"));
    assert!(is_ours(&confirmed.answer), "{confirmed:?}");
    let lock = data.expiries().find(|(key, _)| *key == b"redlock:a");
    assert_eq!(lock, Some((&b"redlock:a"[..], 1_577_836_811_000)));
    let _ = data.command(&moment, &[b"DEL", b"redlock:a"]);
    let lost = eval(
        &mut data,
        &moment,
        RELEASE.source,
        &["t2", "0", "status:0", "0"],
    );
    assert!(!is_ours(&lost.answer), "{lost:?}");
}
