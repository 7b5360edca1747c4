//! The scripts themselves, called as redlock calls them: what is asked twice, what is deleted or full on
//! the server, a clock that was set, and how much one call may do.
//!
//! A clock can't be set here, so what one leaves behind is written in its place: moments in the future,
//! leases that last too long.

use std::collections::BTreeSet;

use crate::support::lua::{KEYS, SHARED, WHO, call, id, source};
use crate::support::{Gated, Redis, Running, now, outcome};

const STATE: &str = KEYS[1];
const META: &str = KEYS[2];
const HOLDERS: &str = KEYS[3];
const QUEUE: &str = KEYS[4];
const WAITERS: &str = KEYS[5];

/// What an acquire asks for.
#[derive(Clone, Copy)]
struct Ask<'a> {
    token: &'a str,
    ttl: &'a str,
    limit: &'a str,
    /// '' without a place in the queue; one that polls is reached by no message, and believed to live.
    place: &'a str,
    ticket: &'a str,
    supersede: &'a str,
    number: &'a str,
}

impl<'a> Ask<'a> {
    fn by(token: &'a str) -> Self {
        Self {
            token,
            ttl: "30000",
            limit: "1",
            place: "",
            ticket: "",
            supersede: "0",
            number: "",
        }
    }

    fn waiting(token: &'a str) -> Self {
        Self {
            place: "poll",
            ..Self::by(token)
        }
    }

    fn limit(self, limit: &'a str) -> Self {
        Self { limit, ..self }
    }

    /// The answer.
    fn ask(self, redis: &Redis) -> Vec<String> {
        let args = [
            self.token,
            self.ttl,
            self.limit,
            WHO,
            self.place,
            self.ticket,
            self.supersede,
            self.number,
            "0",
            "0",
        ];
        call(redis, "acquire", &args)
    }

    #[track_caller]
    fn gets_it(self, redis: &Redis) {
        let answer = self.ask(redis);
        assert_eq!(answer[0], "1", "{answer:?} {}", redis.describe_key("a"));
    }

    /// It waits; its ticket.
    #[track_caller]
    fn waits(self, redis: &Redis) -> String {
        let answer = self.ask(redis);
        assert_eq!(answer[0], "0", "{answer:?} {}", redis.describe_key("a"));
        answer[3].clone()
    }

    #[track_caller]
    fn is_superseded(self, redis: &Redis) {
        let answer = self.ask(redis);
        assert_eq!(answer[0], "2", "{answer:?} {}", redis.describe_key("a"));
    }
}

/// Releases a lock at the end of a run ("" when nothing was done under it); the answer.
fn release(redis: &Redis, token: &str, how: &str) -> Vec<String> {
    call(redis, "release", &[token, "0", how, "0"])
}

fn renew(redis: &Redis, token: &str) -> Vec<String> {
    call(redis, "renew", &[token, "30000", "0"])
}

fn check(redis: &Redis, token: &str) -> Vec<String> {
    call(redis, "check", &[token, "30000"])
}

/// The tokens of the waiters, in the order of their turns.
fn line(redis: &Redis) -> Vec<String> {
    let tokens = redis.cli(&["ZRANGE", QUEUE, "0", "-1"]);
    tokens.lines().map(str::to_owned).collect()
}

/// Now by the server's clock, which is ours, in milliseconds.
fn now_ms() -> u128 {
    now().as_millis()
}

/// A waiter has left without a word long ago.
fn has_died(redis: &Redis, token: &str) {
    let entry = redis.cli(&["HGET", WAITERS, token]);
    let (_, rest) = entry.split_once(' ').unwrap();
    redis.cli(&["HSET", WAITERS, token, &format!("1:1:0 {rest}")]);
}

/// All commands that the server has carried out, those of scripts included.
fn commands(redis: &Redis) -> u64 {
    let stats = redis.cli(&["INFO", "commandstats"]);
    let calls = |line: &str| {
        line.split_once("calls=")?
            .1
            .split(',')
            .next()?
            .parse::<u64>()
            .ok()
    };
    stats.lines().filter_map(calls).sum::<u64>()
}

/// Puts many waiters into the queue at once, which poll and want a slot.
fn crowd(redis: &Redis, count: u32, limit: &str) {
    let script = format!(
        "for n = 1, {count} do
           redis.call('ZADD', KEYS[1], n, 'token' .. n)
           redis.call('HSET', KEYS[2], 'token' .. n, ARGV[1] .. ' {limit} 1 0 ' .. ARGV[2])
         end
         redis.call('HSET', KEYS[3], 'ticket', {count})
         for n = 1, 3 do redis.call('PEXPIRE', KEYS[n], 600000) end"
    );
    // An hour from now, heard of a moment ago, and it knows its ticket.
    let life = format!("{}:{}:1", now_ms() + 3_600_000, now_ms());
    redis.cli(words!(
        "EVAL {} 3",
        &script,
        QUEUE,
        WAITERS,
        STATE,
        &life,
        "{\"host\":\"h\"}"
    ));
}

#[test]
fn a_waiter_that_lost_the_first_reply_gets_its_ticket_by_its_token() {
    let redis = Redis::start();
    Ask::by("holder").gets_it(&redis);
    assert_eq!(Ask::waiting("first").waits(&redis), "1");
    assert_eq!(Ask::waiting("second").waits(&redis), "2");
    assert_eq!(Ask::waiting("first").waits(&redis), "1");
    assert_eq!(Ask::waiting("second").waits(&redis), "2");
    assert_eq!(line(&redis), ["first", "second"]);
}

#[test]
fn a_waiter_that_was_passed_over_before_it_knew_its_ticket_comes_back_in_its_place() {
    let redis = Redis::start();
    Ask::by("holder").gets_it(&redis);
    Ask::waiting("first").waits(&redis);
    Ask::waiting("second").waits(&redis);
    Ask::waiting("third").waits(&redis);
    has_died(&redis, "first");
    release(&redis, "holder", "status:0");
    Ask::waiting("second").gets_it(&redis);
    assert_eq!(line(&redis), ["third"]);
    assert_eq!(Ask::waiting("first").waits(&redis), "1");
    assert_eq!(line(&redis), ["first", "third"]);
}

#[test]
fn a_waiter_that_let_its_grant_run_out_comes_back_in_its_place() {
    let redis = Redis::start();
    Ask::by("holder").gets_it(&redis);
    Ask::waiting("first").waits(&redis);
    Ask::waiting("second").waits(&redis);
    release(&redis, "holder", "status:0");
    assert_eq!(redis.cli(&["GET", "redlock:a"]), "first");
    // As if its time were over.
    redis.cli(&["DEL", "redlock:a"]);
    redis.cli(&["SET", "redlock:a", "other", "PX", "60000"]);
    assert_eq!(Ask::waiting("first").waits(&redis), "1");
    assert_eq!(line(&redis), ["first", "second"]);
}

#[test]
fn an_old_run_that_lost_its_first_reply_does_not_supersede_the_newer_one() {
    let redis = Redis::start();
    Ask::by("holder").gets_it(&redis);
    let supersede = |token| Ask {
        supersede: "1",
        ..Ask::waiting(token)
    };
    supersede("old").waits(&redis);
    supersede("new").waits(&redis);
    supersede("old").is_superseded(&redis);
    assert_eq!(line(&redis), ["new"]);
}

#[test]
fn a_release_that_is_repeated_has_the_same_answer() {
    let redis = Redis::start();
    for (how, keep, answer) in [("status:0", "0", "1"), ("", "0", "1"), ("lost", "0", "0")] {
        let ours = format!("ours {how}");
        Ask::by(&ours).gets_it(&redis);
        if how == "lost" {
            redis.cli(&["DEL", "redlock:a"]);
        }
        let parting = [ours.as_str(), "0", how, keep];
        assert_eq!(call(&redis, "release", &parting)[0], answer, "{how:?}");
        Ask::by("theirs").gets_it(&redis);
        assert_eq!(
            call(&redis, "release", &parting)[0],
            answer,
            "{how:?} again"
        );
        release(&redis, "theirs", "status:0");
    }
    Ask::by("kept").gets_it(&redis);
    let parting = ["kept", "0", "status:0", "60000"];
    assert_eq!(call(&redis, "release", &parting)[0], "3");
    assert_eq!(call(&redis, "release", &parting)[0], "3");
}

#[test]
fn a_lock_that_was_lost_is_still_said_to_be() {
    let redis = Redis::start();
    Ask::by("ours").gets_it(&redis);
    redis.cli(&["DEL", "redlock:a"]);
    Ask::by("theirs").gets_it(&redis);
    let answer = release(&redis, "ours", "status:0");
    assert_eq!((answer[0].as_str(), answer.len()), ("0", 3), "{answer:?}");
    Ask::by("theirs").gets_it(&redis);
}

#[test]
fn a_job_that_gives_its_lock_back_twice_does_not_make_its_run_believe_in_a_loss() {
    let redis = Redis::start();
    Ask::by("ours").gets_it(&redis);
    assert_eq!(call(&redis, "release", words!("ours 1 released 0"))[0], "1");
    assert_eq!(call(&redis, "release", words!("ours 1 released 0"))[0], "2");
    assert_eq!(check(&redis, "ours"), ["2"]);
    assert_eq!(release(&redis, "ours", "status:0"), ["2"]);
}

#[test]
fn a_clock_that_was_set_back_makes_no_negative_wait_and_breaks_no_entry() {
    let redis = Redis::start();
    Ask::by("holder").gets_it(&redis);
    Ask::waiting("waiter").waits(&redis);
    // It came an hour from now.
    let entry = redis.cli(&["HGET", WAITERS, "waiter"]);
    let mut fields: Vec<&str> = entry.splitn(4, ' ').collect();
    let since = (now_ms() + 3_600_000).to_string();
    fields[2] = &since;
    redis.cli(&["HSET", WAITERS, "waiter", &fields.join(" ")]);
    release(&redis, "holder", "status:0");
    Ask::waiting("waiter").gets_it(&redis);
    let entry = redis.cli(&["HGET", META, "waiter"]);
    assert_eq!(entry.split(' ').nth(4), Some("0"), "{entry}");
    // And it was granted then, too.
    let mut fields: Vec<&str> = entry.splitn(3, ' ').collect();
    fields[1] = &since;
    let later = fields.join(" ");
    redis.cli(&["HSET", META, "waiter", &later]);
    let kept = call(&redis, "release", &["waiter", "0", "status:0", "5000"]);
    assert_eq!(kept, ["3", "5000", "0"]);
}

#[test]
fn a_renewal_leaves_the_lock_of_another_as_it_is_though_our_entry_is_still_there() {
    for notify in ["0", "1"] {
        let redis = Redis::start();
        Ask::by("ours").gets_it(&redis);
        redis.cli(&["SET", "redlock:a", "theirs", "PX", "300000"]);
        let answer = call(&redis, "renew", &["ours", "600000", notify]);
        assert_eq!(answer[0], "0");
        assert_eq!(redis.cli(&["GET", "redlock:a"]), "theirs");
        let left: u64 = redis.cli(&["PTTL", "redlock:a"]).parse().unwrap();
        assert!(left <= 300_000, "{left}");
    }
}

#[test]
fn no_more_is_believed_to_be_left_of_a_lease_than_was_asked_for() {
    for limit in ["1", "3", SHARED] {
        let redis = Redis::start();
        Ask::by("ours").limit(limit).gets_it(&redis);
        // As after a clock was set back by an hour.
        let later = (now_ms() + 3_600_000).to_string();
        redis.cli(&["PEXPIREAT", "redlock:a", &later]);
        if limit != "1" {
            redis.cli(&["ZADD", HOLDERS, &later, "ours"]);
        }
        let left = |answer: Vec<String>| answer[1].parse::<u64>().unwrap();
        assert_eq!(left(check(&redis, "ours")), 30_000, "{limit}");
        assert_eq!(left(renew(&redis, "ours")), 30_000, "{limit}");
        // What its own job asks for counts.
        call(&redis, "renew", &["ours", "600000", "1"]);
        assert_eq!(left(check(&redis, "ours")), 600_000, "{limit}");
        assert_eq!(left(renew(&redis, "ours")), 600_000, "{limit}");
    }
}

#[test]
fn a_reader_that_comes_does_not_write_the_key_that_the_others_watch() {
    for (limit, other) in [(SHARED, SHARED), ("9", "9"), ("9", SHARED)] {
        let redis = Redis::start();
        Ask::by("first").limit(limit).gets_it(&redis);
        // Enough for the next one, and not what the first one set.
        redis.cli(&["PEXPIRE", "redlock:a", "60000"]);
        let before = redis.cli(&["PEXPIRETIME", "redlock:a"]);
        Ask::by("second").limit(other).gets_it(&redis);
        assert_eq!(redis.cli(&["PEXPIRETIME", "redlock:a"]), before);
        renew(&redis, "second");
        assert_eq!(redis.cli(&["PEXPIRETIME", "redlock:a"]), before);
        // One whose lease would end later does.
        redis.cli(&["PEXPIRE", "redlock:a", "20000"]);
        Ask::by("third").limit(other).gets_it(&redis);
        let left: u64 = redis.cli(&["PTTL", "redlock:a"]).parse().unwrap();
        assert!(left > 30_000, "{left}");
    }
}

/// The first 1,500 waiters could be reached, but no process listens.
fn lose_subscriptions(redis: &Redis) {
    let script = "for _, token in ipairs(redis.call('ZRANGE', KEYS[1], 0, 1499)) do
        redis.call('HSET', KEYS[2], token, (string.gsub(redis.call('HGET', KEYS[2], token), ' 0 {', ' 1 {')))
    end";
    redis.cli(&["EVAL", script, "2", QUEUE, WAITERS]);
}

#[test]
fn a_free_lock_goes_to_the_first_live_waiter_behind_1500_dead_ones() {
    let redis = Redis::start();
    Ask::by("holder").gets_it(&redis);
    crowd(&redis, 1500, "1");
    Ask::waiting("live").waits(&redis);
    lose_subscriptions(&redis);
    // A run calls it as long as dead ones are left, a hundred a call.
    let mut calls = 1;
    while release(&redis, "holder", "status:0") == ["4"] {
        calls += 1;
    }
    assert_eq!(
        (calls, redis.cli(&["GET", "redlock:a"]).as_str()),
        (16, "live")
    );
}

#[test]
fn a_live_waiter_behind_1500_dead_ones_is_to_ask_again_at_once_until_a_free_lock_is_its_own() {
    let redis = Redis::start();
    Ask::by("holder").gets_it(&redis);
    crowd(&redis, 1500, "1");
    Ask::waiting("live").waits(&redis);
    lose_subscriptions(&redis);
    // Its holder has died, too, so that nobody releases it.
    redis.cli(&["DEL", "redlock:a"]);
    let mut calls = 1;
    loop {
        let answer = Ask::waiting("live").ask(&redis);
        if answer[0] == "1" {
            break;
        }
        let (left, asks_again) = (&answer[5], &answer[11]);
        assert_eq!((left.as_str(), asks_again.as_str()), ("0", "1"));
        calls += 1;
        assert!(calls < 30);
    }
}

#[test]
fn a_run_that_ends_hands_its_lock_to_the_first_live_waiter_behind_1500_dead_ones() {
    let redis = Redis::start();
    let run = Gated::start(&redis, &["a"]).ready();
    crowd(&redis, 1500, "1");
    Ask::waiting("live").waits(&redis);
    lose_subscriptions(&redis);
    run.end();
    // The grant may be over by now, but its entry is still there.
    assert_eq!(redis.cli(&["HEXISTS", META, "live"]), "1");
}

#[test]
fn members_whose_lock_was_deleted_are_not_brought_back_by_others() {
    for forgotten in [&["redlock:a"][..], &["redlock:a", META]] {
        for way in ["cancel", "acquire", "force", "thaw"] {
            let redis = Redis::start();
            Ask::by("lost").limit(SHARED).gets_it(&redis);
            Ask::waiting("writer").waits(&redis);
            Ask::waiting("reader").limit(SHARED).waits(&redis);
            redis.cli(&[&["DEL"], forgotten].concat());
            match way {
                "cancel" => drop(release(&redis, "writer", "")),
                "force" => drop(call(&redis, "force", &["", WHO, "0", "0"])),
                "thaw" => {
                    call(&redis, "freeze", &["60000", WHO]);
                    call(&redis, "thaw", &[]);
                }
                _ => drop(Ask::by("new").limit(SHARED).ask(&redis)),
            }
            release(&redis, "writer", "");
            Ask::waiting("reader").limit(SHARED).gets_it(&redis);
            assert_eq!(check(&redis, "lost")[0], "0", "{way} {forgotten:?}");
            assert_eq!(renew(&redis, "lost")[0], "0", "{way} {forgotten:?}");
            assert_eq!(redis.cli(&["ZRANGE", HOLDERS, "0", "-1"]), "reader");
        }
    }
}

#[test]
fn force_frees_a_lock_of_which_all_members_are_dead() {
    for limit in ["5", SHARED] {
        let redis = Redis::start();
        Ask::by("dead").limit(limit).gets_it(&redis);
        redis.cli(&["ZADD", HOLDERS, "1", "dead"]);
        assert_eq!(call(&redis, "force", &["", WHO, "0", "0"]), ["0"]);
        assert_eq!(redis.cli(&["EXISTS", "redlock:a"]), "0");
    }
}

#[test]
fn a_waiter_for_a_frozen_lock_with_a_dead_member_learns_when_the_freeze_ends() {
    for limit in ["5", SHARED] {
        let redis = Redis::start();
        Ask::by("dead").limit(limit).gets_it(&redis);
        call(&redis, "freeze", &["60000", WHO]);
        redis.cli(&["ZADD", HOLDERS, "1", "dead"]);
        let answer = Ask::waiting("waiter").ask(&redis);
        let left: u64 = answer[5].parse().unwrap();
        assert!(left > 30_000, "{answer:?}");
        assert_eq!(answer[6], "0", "it has no holder: {answer:?}");
    }
}

#[test]
fn an_older_run_does_not_follow_a_newer_one_that_got_the_lock_directly() {
    let redis = Redis::start();
    Ask::by("holder").gets_it(&redis);
    let ticket = Ask::waiting("old").waits(&redis);
    has_died(&redis, "old");
    release(&redis, "holder", "status:0");
    let new = Ask {
        supersede: "1",
        ..Ask::by("new")
    };
    new.gets_it(&redis);
    release(&redis, "new", "status:0");
    let old = Ask {
        ticket: &ticket,
        ..Ask::waiting("old")
    };
    old.is_superseded(&redis);
}

#[test]
fn a_number_that_never_got_the_lock_displaces_no_run_once_it_is_gone() {
    let redis = Redis::start();
    Ask::by("holder").gets_it(&redis);
    let numbered = |token, number| Ask {
        supersede: "1",
        number,
        ..Ask::waiting(token)
    };
    numbered("100", "100").waits(&redis);
    numbered("50", "50").is_superseded(&redis);
    assert_eq!(line(&redis), ["100"]);
    release(&redis, "100", "");
    // It has given up, and the next one may run.
    numbered("50", "50").waits(&redis);
    numbered("60", "60").waits(&redis);
    assert_eq!(line(&redis), ["60"]);
    release(&redis, "holder", "status:0");
    assert_eq!(redis.cli(&["GET", "redlock:a"]), "60");
    // It is granted, and then it runs.
    numbered("55", "55").is_superseded(&redis);
    assert_eq!(renew(&redis, "60")[0], "1");
    numbered("55", "55").is_superseded(&redis);
    release(&redis, "60", "status:0");
    numbered("55", "55").is_superseded(&redis);
    numbered("61", "61").gets_it(&redis);
}

#[test]
fn a_thaw_lets_3000_in_by_parts_and_gives_each_a_slot_of_its_own() {
    let redis = Redis::start();
    call(&redis, "freeze", &["600000", WHO]);
    crowd(&redis, 3000, "3000");
    let before = commands(&redis);
    assert_eq!(call(&redis, "thaw", &[])[0], "1");
    let took = commands(&redis) - before;
    assert!(took < 5_000, "one call of thaw sent {took} commands");
    // However long this takes, no grant runs out; returns one that isn't confirmed.
    let granted = "local token = ''
        for _, one in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do
            redis.call('ZADD', KEYS[2], ARGV[1], one)
            if string.find(redis.call('HGET', KEYS[3], one), ' granted[: ]') then token = one end
        end
        redis.call('PEXPIREAT', KEYS[1], ARGV[1])
        return token";
    let later = (now_ms() + 3_600_000).to_string();
    while redis.cli(&["ZCARD", QUEUE]) != "0" {
        let token = redis.cli(&["EVAL", granted, "3", KEYS[0], HOLDERS, META, &later]);
        assert_ne!(token, "", "no waiter is admitted any more");
        let before = commands(&redis);
        assert_eq!(renew(&redis, &token)[0], "1");
        let took = commands(&redis) - before;
        assert!(took < 5_000, "one confirmation sent {took} commands");
    }
    let entries = redis.cli(&["HVALS", META]);
    let slot = |entry: &str| entry.split(' ').nth(3)?.parse::<u32>().ok();
    let slots: BTreeSet<u32> = entries.lines().filter_map(slot).collect();
    assert_eq!(slots, (1..=3000).collect());
    // One that leaves, and one that comes.
    let before = commands(&redis);
    release(&redis, "token1700", "status:0");
    let answer = Ask::by("new").limit("3000").ask(&redis);
    assert_eq!((answer[0].as_str(), answer[2].as_str()), ("1", "1700"));
    Ask::waiting("late").limit("3000").waits(&redis);
    let took = commands(&redis) - before;
    assert!(took < 200, "{took} commands");
}

#[test]
fn slots_are_found_again_when_their_key_was_deleted() {
    let redis = Redis::start();
    for token in ["1", "2", "3"] {
        Ask::by(token).limit("4").gets_it(&redis);
    }
    release(&redis, "2", "status:0");
    redis.cli(&["DEL", KEYS[8]]);
    let answer = Ask::by("next").limit("9").ask(&redis);
    assert_eq!((answer[0].as_str(), answer[2].as_str()), ("1", "2"));
    let answer = Ask::by("more").limit("9").ask(&redis);
    assert_eq!((answer[0].as_str(), answer[2].as_str()), ("1", "4"));
    Ask::by("fifth").limit("9").waits(&redis);
    // Without what is known of them, no other is admitted beside them.
    release(&redis, "more", "status:0");
    redis.cli(&["DEL", KEYS[8], META]);
    Ask::by("fifth").limit("9").waits(&redis);
    assert_eq!(renew(&redis, "1")[0], "1");
}

#[test]
fn readers_that_were_beside_slots_are_readers_when_those_are_gone() {
    let redis = Redis::start();
    Ask::by("reader").limit(SHARED).gets_it(&redis);
    Ask::by("slot").limit("2").gets_it(&redis);
    Ask::by("another").limit(SHARED).waits(&redis);
    release(&redis, "slot", "status:0");
    assert_eq!(redis.cli(&["GET", "redlock:a"]), "redlock:shared");
    Ask::by("another").limit(SHARED).gets_it(&redis);
    let answer = Ask::by("slot").limit("3").ask(&redis);
    assert_eq!((answer[0].as_str(), answer[2].as_str()), ("1", "1"));
}

/// The keys that have no expiry.
fn for_ever(redis: &Redis) -> Vec<String> {
    let script = "local kept = {}
        for _, key in ipairs(redis.call('KEYS', '*')) do
            if redis.call('PTTL', key) == -1 then kept[#kept + 1] = key end
        end
        return kept";
    let all = redis.cli(&["EVAL", script, "0"]);
    all.lines().map(str::to_owned).collect()
}

#[test]
fn no_key_is_left_without_an_expiry_whatever_single_key_was_deleted() {
    let redis = Redis::start();
    for deleted in KEYS {
        for limit in ["1", "2", SHARED] {
            for way in 0..8 {
                redis.cli(&["FLUSHALL"]);
                Ask::by("holder").limit(limit).gets_it(&redis);
                Ask::waiting("first").waits(&redis);
                Ask::waiting("second").limit(limit).waits(&redis);
                if way == 7 {
                    release(&redis, "holder", "status:0");
                }
                redis.cli(&["DEL", deleted]);
                match way {
                    0 => drop(release(&redis, "holder", "status:0")),
                    1 => drop(renew(&redis, "holder")),
                    2 => drop(call(&redis, "renew", &["holder", "60000", "1"])),
                    3 => drop(release(&redis, "first", "")),
                    4 => drop(call(&redis, "force", &["", WHO, "0", "0"])),
                    5 => {
                        call(&redis, "freeze", &["60000", WHO]);
                        call(&redis, "thaw", &[]);
                    }
                    6 => drop(Ask::waiting("third").limit(limit).ask(&redis)),
                    _ => drop(renew(&redis, "first")),
                }
                let all = for_ever(&redis);
                assert_eq!(
                    all, [""; 0],
                    "{deleted} was deleted, limit {limit}, way {way}"
                );
            }
        }
    }
}

#[test]
fn tickets_never_fall_below_those_in_the_queue() {
    let redis = Redis::start();
    Ask::by("holder").gets_it(&redis);
    for token in ["c", "b"] {
        Ask::waiting(token).waits(&redis);
    }
    redis.cli(&["DEL", STATE]);
    assert_eq!(Ask::waiting("a").waits(&redis), "3");
    assert_eq!(line(&redis), ["c", "b", "a"]);
}

/// Makes these many members of a group (token1 and so on), each with the slot of its number unless they are shared.
fn members(redis: &Redis, count: u32, limit: &str) {
    let code = "
local value = ARGV[1] == '1000000000' and 'redlock:shared' or 'redlock:slots'
redis.call('SET', KEYS[1], value, 'PX', 60000)
local ends = redis.call('TIME')[1] * 1000 + 60000
for n = 1, tonumber(ARGV[2]) do
  local slot = value == 'redlock:slots' and n or 0
  redis.call('ZADD', KEYS[4], ends, 'token' .. n)
  redis.call('HSET', KEYS[3], 'token' .. n, table.concat({n, ends - 60000, ARGV[1], slot, 0, 'held', ARGV[3]}, ' '))
  if slot > 0 then
    redis.call('ZADD', KEYS[9], slot, 'slot token' .. n, string.format('%.0f', 2 ^ 40 + ARGV[1]), 'limit token' .. n)
  end
end";
    let count = count.to_string();
    let words = [&["EVAL", code, "12"], &KEYS[..], &[limit, &count, WHO]].concat();
    redis.cli(&words);
}

/// How many commands the server carries out meanwhile.
fn work(redis: &Redis, call: impl FnOnce()) -> u64 {
    let before = commands(redis);
    call();
    commands(redis) - before
}

#[test]
fn each_of_1200_members_that_are_forced_free_learns_by_whom_for_a_day() {
    let redis = Redis::start();
    members(&redis, 1_200, SHARED);
    // One of the last that are looked through.
    let one = id("token777");
    outcome(&mut redis.redlock(&["release", "--force", "--id", &one, "a"])).assert_code(0);
    let other = id("token778");
    outcome(&mut redis.redlock(&["stop", "-n", "--id", &other, "a"])).assert_code(0);
    let forced = work(&redis, || {
        let done = call(&redis, "force", &["", WHO, "0", "0"]);
        assert_eq!(done.last().unwrap(), "999", "{done:?}");
    });
    assert!(forced < 200 * 30, "{forced}");
    outcome(&mut redis.redlock(&["release", "--force", "--all", "a"]))
        .assert_code(0)
        .assert_says("998 more");
    assert_eq!(redis.cli(&["EXISTS", KEYS[0], META, HOLDERS]), "0");
    for number in (1..=1_200).step_by(37).chain([777, 778]) {
        let answer = check(&redis, &format!("token{number}"));
        assert_eq!(answer[0], "0", "{number}: {answer:?}");
        assert!(answer[1].contains("host"), "{number}: {answer:?}");
    }
    let day = 24 * 3600;
    let left: u64 = redis.cli(&["TTL", KEYS[9]]).parse().unwrap();
    assert!((day - 60..=day).contains(&left), "{left}");
}

#[test]
fn a_member_and_a_waiter_among_2500_each_are_found_by_their_ids() {
    let redis = Redis::start();
    members(&redis, 2_500, SHARED);
    Ask::waiting("live").waits(&redis);
    let code = "for n = 1, 2500 do
        redis.call('ZADD', KEYS[1], n, 'waiter' .. n)
        redis.call('HSET', KEYS[2], 'waiter' .. n, '99999999999999:1:1 1 1 0 {}')
    end";
    redis.cli(&["EVAL", code, "2", QUEUE, WAITERS]);
    // Wherever they stand in the server's own order, some of these are beyond the first 2,000.
    for number in (1..=2_500).step_by(250) {
        let one = id(&format!("token{number}"));
        outcome(&mut redis.redlock(&["stop", "-n", "--id", &one, "a"])).assert_code(0);
        outcome(&mut redis.redlock(words!("release --force --id", &one, "a"))).assert_code(0);
        assert_eq!(check(&redis, &format!("token{number}"))[0], "0");
    }
    let waiter = id("live");
    // All that may have taken longer than one that is silent is taken for alive.
    Ask::waiting("live").waits(&redis);
    outcome(&mut redis.redlock(&["release", "--force", "--id", &waiter, "a"])).assert_code(0);
    assert_eq!(redis.cli(&["ZSCORE", QUEUE, "live"]), "");
    let compared = work(&redis, || {
        let answer = call(&redis, "stop", &["ffffffffffff", WHO, "0"]);
        assert_eq!(answer[0], "4", "{answer:?}");
    });
    assert!(compared < 100, "{compared}");
}

#[test]
fn of_600_members_whose_key_was_deleted_a_hundred_are_recorded() {
    let redis = Redis::start();
    members(&redis, 600, SHARED);
    redis.cli(&["DEL", KEYS[0]]);
    let shown = work(&redis, || drop(call(&redis, "history", &[])));
    let taken = work(&redis, || Ask::by("next").gets_it(&redis));
    assert!(shown < 250 * 3 && taken < 100 * 6, "{shown} {taken}");
    assert_eq!(redis.cli(&["EXISTS", HOLDERS]), "0");
    assert_eq!(redis.cli(&["HLEN", META]), "1");
    assert_eq!(redis.cli(&["LLEN", KEYS[6]]), "100");
}

#[test]
fn lost_slots_of_1200_members_are_restored_before_any_is_given_away() {
    let redis = Redis::start();
    members(&redis, 1_200, "1201");
    redis.cli(&["DEL", KEYS[8]]);
    let member = Ask::by("next").limit("1201");
    let mut calls = 0;
    let slot = loop {
        let mut answer = Vec::new();
        let done = work(&redis, || answer = member.ask(&redis));
        assert!(done < 500 * 4, "{done}");
        calls += 1;
        if answer[0] == "1" {
            break answer[2].clone();
        }
        assert!(calls < 10, "{answer:?}");
    };
    assert_eq!((calls, slot.as_str()), (3, "1201"));
    assert_eq!(Ask::by("last").limit("1201").ask(&redis)[0], "0");
}

#[test]
fn one_of_1200_members_without_an_entry_keeps_all_others_out_in_whichever_part_it_is_found() {
    let redis = Redis::start();
    members(&redis, 1_200, "1201");
    redis.cli(&["DEL", KEYS[8]]);
    // It is in the first part, and all of the others are complete.
    let part = redis.cli(&["ZSCAN", HOLDERS, "0", "COUNT", "500"]);
    let unknown = part.lines().find(|line| line.starts_with("token")).unwrap();
    redis.cli(&["HDEL", META, unknown]);
    for _ in 0..10 {
        let answer = Ask::by("next").limit("1201").ask(&redis);
        assert_eq!(answer[0], "0", "{answer:?}");
    }
    release(&redis, unknown, "status:0");
    let mut calls = 0;
    while Ask::by("next").limit("1201").ask(&redis)[0] == "0" {
        calls += 1;
        assert!(calls < 10);
    }
}

#[test]
fn slots_that_are_lost_once_more_while_they_are_restored_are_restored_from_the_start() {
    let redis = Redis::start();
    members(&redis, 1_200, "1201");
    redis.cli(&["DEL", KEYS[8]]);
    let next = Ask::by("next").limit("1201");
    assert_eq!(next.ask(&redis)[0], "0");
    redis.cli(&["DEL", KEYS[8]]);
    let mut calls = 0;
    let slot = loop {
        let answer = next.ask(&redis);
        calls += 1;
        if answer[0] == "1" {
            break answer[2].clone();
        }
        assert!(calls < 10, "{answer:?}");
    };
    assert_eq!((calls, slot.as_str()), (3, "1201"));
    // Readers need no slots, so that none of them is restored however many are looked through.
    let redis = Redis::start();
    members(&redis, 1_200, SHARED);
    redis.cli(&["SET", "redlock:a", "redlock:slots", "KEEPTTL"]);
    let reader = Ask::by("reader").limit(SHARED);
    let mut calls = 0;
    while reader.ask(&redis)[0] == "0" {
        calls += 1;
        assert!(calls < 10);
    }
}

#[test]
fn a_status_in_parts_shows_all_of_1200_members_and_1200_waiters_once() {
    let redis = Redis::start();
    members(&redis, 1_200, SHARED);
    crowd(&redis, 1_200, "1");
    let status = outcome(&mut redis.redlock(&["status", "--json", "a"]));
    status.assert_code(0);
    let lock: serde_json::Value = serde_json::from_str(&status.stdout).unwrap();
    let lock = if lock.is_array() { &lock[0] } else { &lock };
    for list in ["holders", "waiters"] {
        let ids = lock[list].as_array().unwrap().iter();
        let ids: BTreeSet<String> = ids.map(|entry| entry["id"].to_string()).collect();
        assert_eq!(
            (ids.len(), lock[list].as_array().unwrap().len()),
            (1_200, 1_200),
            "{list}"
        );
    }
}

#[test]
fn a_hold_whose_lock_was_deleted_is_lost_and_not_in_the_future() {
    let redis = Redis::start();
    for limit in ["1", SHARED] {
        Ask::by("gone").limit(limit).gets_it(&redis);
        redis.cli(&["DEL", "redlock:a"]);
        let before = now_ms();
        let answer = call(&redis, "history", &[]);
        let (how, when) = (&answer[answer.len() - 3], &answer[answer.len() - 2]);
        let when: u128 = when.parse().unwrap();
        assert_eq!(how, "2", "{answer:?}");
        assert!((before..=now_ms()).contains(&when), "{answer:?}");
        // Who comes next writes it down so.
        Ask::by("next").gets_it(&redis);
        let record = redis.cli(&["LINDEX", KEYS[6], "0"]);
        assert_eq!(record.split(' ').nth(2), Some("lost"), "{record}");
        release(&redis, "next", "status:0");
    }
}

#[test]
fn a_lock_can_be_released_and_acquired_whatever_others_put_into_its_other_keys() {
    for key in &KEYS[2..] {
        for limit in ["1", "2", SHARED] {
            // Without the set of members no client is known to be one, until the lock expires.
            if *key == HOLDERS && limit != "1" {
                continue;
            }
            let redis = Redis::start();
            Ask::by("holder").limit(limit).gets_it(&redis);
            let put = |redis: &Redis| {
                redis.cli(&["DEL", key]);
                redis.cli(&["SET", key, "theirs", "PX", "60000"]);
            };
            put(&redis);
            release(&redis, "holder", "status:0");
            let left = redis.cli(&["EXISTS", "redlock:a"]);
            assert_eq!(left, "0", "{key} {limit}: {}", redis.describe_key("a"));
            // What belongs to no lock any more is removed with it; a queue isn't touched.
            if ![QUEUE, WAITERS].contains(key) {
                put(&redis);
                Ask::by("next").limit(limit).gets_it(&redis);
            }
        }
    }
}

#[test]
fn readers_get_in_at_once_when_the_last_of_600_members_with_a_limit_has_left() {
    let redis = Redis::start();
    let readers = |kind: &str, many: u32| {
        for number in 0..many {
            let token = format!("{kind}-{number}");
            Ask::by(&token).limit(SHARED).gets_it(&redis);
        }
    };
    readers("early", 600);
    Ask::by("limited").limit("5000").gets_it(&redis);
    release(&redis, "limited", "status:0");
    // Their slots would be restored 500 at a time, as after the loss of that key.
    readers("late", 3);
}

/// One of two servers that are asked the same, with the messages that it publishes for the lock "a".
struct Twin {
    redis: Redis,
    messages: Running,
    /// The short path in front of each script is left out.
    general: bool,
}

impl Twin {
    fn new(general: bool) -> Self {
        let redis = Redis::start();
        let port = redis.port.to_string();
        let mut listen = std::process::Command::new("redis-cli");
        let mut messages =
            Running::start(listen.args(["-p", &port, "PSUBSCRIBE", "{redlock:a}:*"]));
        while messages.line() != "1" {}
        Self {
            redis,
            messages,
            general,
        }
    }

    /// What a script answers at a moment, in seconds.
    fn call(&self, name: &str, args: &[&str], at: usize) -> String {
        let mut text = source(name).replace(
            "redis.call('TIME')",
            &format!("{{'{}', '7'}}", 1_800_000_000 + at),
        );
        if self.general {
            for condition in ["#ARGV >= 13 and", "#ARGV == 7 and"] {
                text = text.replacen(condition, "false and", 1);
            }
        }
        let common = ["a", "{redlock:a}:", "200"];
        let command = words!("EVAL {} 12", &text);
        self.redis.cli(&[command, &KEYS, &common, args].concat())
    }

    /// All that is stored, and in how many hours it ends.
    fn stored(&self) -> String {
        let read = "local found = {}
            for _, key in ipairs(redis.call('KEYS', '*')) do
                local kind, value = redis.call('TYPE', key).ok, nil
                if kind == 'string' then value = {redis.call('GET', key)}
                elseif kind == 'hash' then
                    value = {}
                    for _, field in ipairs(redis.call('HKEYS', key)) do
                        value[#value + 1] = field .. ' = ' .. redis.call('HGET', key, field)
                    end
                    table.sort(value)
                elseif kind == 'list' then value = redis.call('LRANGE', key, 0, -1)
                else value = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES') end
                local hours = math.floor(redis.call('PTTL', key) / 3600000 + 0.5)
                found[#found + 1] = key .. ' ' .. hours .. ': ' .. table.concat(value, ' | ')
            end
            table.sort(found)
            return table.concat(found, '; ')";
        self.redis.cli(&["EVAL", read, "0"])
    }
}

/// The text without the numbers that are a moment, or what is left of one.
fn without_moments(text: &str) -> String {
    let mut parts = Vec::new();
    for part in text.split_inclusive(|c: char| !c.is_ascii_digit()) {
        let digits = part.trim_end_matches(|c: char| !c.is_ascii_digit());
        parts.push(if digits.len() > 4 {
            part.replacen(digits, "<moment>", 1)
        } else {
            part.to_owned()
        });
    }
    parts.concat()
}

#[test]
fn the_short_path_in_front_of_a_script_does_just_what_the_rest_does() {
    let acquire = |token, place| {
        let rest = ["", "0", "", "0", "0"];
        let args = [&[token, "30000", "1", WHO, place], &rest[..]].concat();
        ("acquire", args)
    };
    let renew = |token| ("renew", vec![token, "30000", "0"]);
    let release = |token, how| ("release", vec![token, "0", how, "0"]);
    let scenes = [
        vec![acquire("t1", ""), renew("t1"), release("t1", "status:0")],
        vec![
            acquire("t1", ""),
            release("t1", "status:3"),
            acquire("t2", ""),
        ],
        // Handed on, and confirmed.
        vec![
            acquire("t1", ""),
            acquire("t2", "listen"),
            release("t1", "status:0"),
            renew("t2"),
            release("t2", "status:0"),
        ],
        // Handed on, and over before it is confirmed; then the next, and one that knows its ticket.
        vec![
            acquire("t1", ""),
            acquire("t2", "listen"),
            acquire("t3", "listen"),
            release("t1", "status:0"),
            release("t2", "status:0"),
            release("t3", "status:1"),
            release("t3", "status:1"),
        ],
    ];
    for scene in scenes {
        let mut twins = [Twin::new(false), Twin::new(true)];
        for (at, (name, args)) in scene.iter().enumerate() {
            let [short, general] = [&twins[0], &twins[1]].map(|twin| {
                let answer = twin.call(name, args, at);
                without_moments(&format!("{answer}\n{}", twin.stored()))
            });
            assert_eq!(short, general, "{name} {args:?} of {scene:?}");
        }
        let published = twins.each_mut().map(|twin| {
            twin.redis.cli(&["PUBLISH", "{redlock:a}:", "end"]);
            let mut lines = Vec::new();
            while lines.last().is_none_or(|line| line != "end") {
                lines.push(without_moments(&twin.messages.line()));
            }
            lines
        });
        assert_eq!(published[0], published[1], "{scene:?}");
    }
}
