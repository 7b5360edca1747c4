use serde_json::json;

use super::*;
use crate::protocol::golden::locks;

/// Returns the state of a lock without a known holder.
fn blocked() -> Busy {
    Busy {
        now_ms: 1_003_500,
        ahead: 1,
        ticket: None,
        polls: false,
        left: Some(Duration::from_secs(28)),
        holders: 0,
        id: String::new(),
        holder: None,
        frozen: None,
        repaired: false,
        is_behind_dead: false,
        stopping: None,
    }
}

fn held_by(who: Who) -> Busy {
    let mut holder = locks()[6].holds()[0].holder.clone();
    holder.as_mut().unwrap().since_ms = 0;
    holder.as_mut().unwrap().who = who;
    Busy {
        left: None,
        holders: 1,
        holder,
        ..blocked()
    }
}

fn deploy() -> Name {
    "deploy".parse().unwrap()
}

fn outlook(width: usize) -> Outlook {
    Outlook {
        width,
        ..Outlook::default()
    }
}

#[test]
fn what_is_quoted_has_an_end() {
    let long = || "x".repeat(2000);
    let who = Who {
        host: long(),
        user: long(),
        command: vec![long()],
        reason: Some(long()),
        url: Some(long()),
        ..Who::default()
    };
    let frozen = Frozen {
        until_ms: 0,
        since_ms: 0,
        who: who.clone(),
    };
    for frozen in [None, Some(frozen)] {
        let busy = Busy {
            frozen,
            ..held_by(who.clone())
        };
        for line in [
            busy_line(&deploy(), "", &busy),
            waiting_line(&deploy(), &busy, Duration::ZERO, &outlook(usize::MAX)),
        ] {
            assert!(line.contains("x…") && line.len() < 2000, "{line}");
        }
    }
}

#[test]
fn a_narrow_terminal_shows_what_to_expect_rather_than_the_command() {
    let who = json!({"host": "fv-az1234-567.internal.cloudapp.net", "user": "runner", "pid": 4121,
        "command": ["./deploy.sh", "--region", "eu-west-1"], "instance": "i"});
    let busy = Busy {
        now_ms: 80_000,
        ..held_by(serde_json::from_value(who).unwrap())
    };
    let line = |width: usize, usual: Option<u64>| {
        let outlook = Outlook {
            usual: usual.map(Duration::from_secs),
            queues: true,
            ..outlook(width)
        };
        let line = waiting_line(&deploy(), &busy, Duration::ZERO, &outlook);
        assert!(columns(PREFIX) + columns(&line) <= width.max(44), "{line}");
        line
    };
    let all = "waiting for \"deploy\", held by runner@fv-az1234-567.internal.cloudapp.net (pid 4121) for \
               1m20s: ./deploy.sh --region eu-west-1; usually done in 2m40s, about 1m20s left; 2nd in line";
    assert_eq!(line(usize::MAX, Some(160)), all);
    let short = "waiting for \"deploy\", held by runner@fv-az1234-567.internal.cloudapp.net (pid …; about 1m20s left; 2nd in line";
    assert_eq!(line(119, Some(160)), short);
    let shorter = "waiting for \"deploy\", held by runner@f…; about 1m20s left; 2nd in line";
    assert_eq!(line(79, Some(160)), shorter);
    assert_eq!(line(39, Some(160)), "waiting for \"deploy\"; 2nd in line");
    // The hold takes a little longer than usual.
    assert!(line(usize::MAX, Some(70)).ends_with("; usually done in 1m10s; 2nd in line"));
    // The hold takes much longer.
    assert!(line(usize::MAX, Some(60)).ends_with("; over its usual 1m; 2nd in line"));
    let shorter = "waiting for \"deploy\", held by runner@fv-az1234-…; 2nd in line";
    assert_eq!(line(70, Some(60)), shorter);
    assert_eq!(line(50, Some(60)), "waiting for \"deploy\"; 2nd in line");
    assert!(line(usize::MAX, None).ends_with("eu-west-1; 2nd in line"));
}

#[test]
fn waiting_lines_and_refusals_name_a_server_of_another_host() {
    let at = " at 10.0.0.5:6379";
    let line = |width| {
        let outlook = Outlook {
            at: at.into(),
            ..outlook(width)
        };
        waiting_line(&deploy(), &blocked(), Duration::ZERO, &outlook)
    };
    let refusal = "lock \"deploy\" at 10.0.0.5:6379 is being handed over; 1 ahead";
    assert_eq!(busy_line(&deploy(), at, &blocked()), refusal);
    let at = "waiting for \"deploy\" at 10.0.0.5:6379, being handed over; 1 ahead";
    assert_eq!(line(99), at);
    // On a narrow terminal the holder is more important.
    let narrow = "waiting for \"deploy\", being handed over; 1 ahead";
    assert_eq!(line(70), narrow);
}

#[test]
fn what_is_left_of_a_hold_is_never_estimated_once_it_is_well_over_its_usual_length() {
    for (running, expected) in [
        (60, "usually done in 4m, about 3m left"),
        (239, "usually done in 4m, about 1s left"),
        (240, "usually done in 4m"),
        (300, "usually done in 4m"),
        (301, "over its usual 4m"),
        (300_000, "over its usual 4m"),
    ] {
        let [usual, running] = [240, running].map(Duration::from_secs);
        assert_eq!(expectation(usual, running), expected);
    }
    let second = Duration::from_secs(1);
    assert_eq!(expectation(Duration::ZERO, second), "over its usual 0s");
    assert!(expectation(Duration::MAX, second).starts_with("usually done"));
}

#[test]
fn a_waiter_behind_a_freeze_sees_how_long_it_lasts_at_any_width() {
    let who = json!({"host": "ops-1", "user": "root", "pid": 4121, "reason": "switching to green"});
    let frozen = Frozen {
        until_ms: 2_000_000,
        since_ms: 1_000_000,
        who: serde_json::from_value(who).unwrap(),
    };
    let busy = Busy {
        frozen: Some(frozen),
        ..blocked()
    };
    let line = |width| {
        let outlook = Outlook {
            queues: true,
            ..outlook(width)
        };
        waiting_line(&deploy(), &busy, Duration::from_secs(1), &outlook)
    };
    let all = "waiting for \"deploy\", frozen by root@ops-1: switching to green (16m35s left); 2nd in line";
    assert_eq!(line(columns(PREFIX) + columns(all)), all);
    let short = "waiting for \"deploy\", frozen by root@ops-1: switching to…; 2nd in line";
    assert_eq!(line(79), short);
    let shorter = "waiting for \"deploy\", frozen by root@ops…; 2nd in line";
    assert_eq!(line(63), shorter);
    let refusal = "lock \"deploy\" is frozen by root@ops-1: switching to green (16m36s left); `redlock thaw deploy` undoes it";
    assert_eq!(busy_line(&deploy(), "", &busy), refusal);
}
