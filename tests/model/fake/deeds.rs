//! What is done to a real server and to the fake: commands and scripts with random arguments, of which most make
//! sense, and what changes around them.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::protocol::model::redis::{Bytes, commands};
use crate::protocol::model::support::SERVER;
use crate::protocol::model::support::lua;

#[derive(Clone, Debug)]
pub enum Deed {
    /// So many microseconds pass, or the clock is set back.
    Time(i64),
    /// A channel is listened to, or not any more.
    Listen(String, bool),
    ListenInShard(String, bool),
    /// There is no memory left.
    Full(bool),
    /// It becomes a replica, or the primary again.
    Replica(bool),
    /// A command is permitted, or not any more.
    Permit(&'static str, bool),
    Command(Vec<Bytes>),
    Script(&'static str, Vec<Bytes>),
    /// Lua that isn't shipped: how its values become those of the protocol, and back.
    Lua(&'static str, Vec<Bytes>),
}

impl Deed {
    pub fn is_call(&self) -> bool {
        matches!(self, Self::Command(_) | Self::Script(..) | Self::Lua(..))
    }

    /// As a person reads it.
    pub fn told(&self) -> String {
        let shown = |words: &[Bytes]| {
            let words = words
                .iter()
                .map(|word| format!("{:?}", String::from_utf8_lossy(word)));
            words.collect::<Vec<_>>().join(" ")
        };
        match self {
            Self::Command(words) => shown(words),
            Self::Script(name, args) => format!("{name} {}", shown(args)),
            Self::Lua(text, args) => format!("{text:?} {}", shown(args)),
            other => format!("{other:?}"),
        }
    }
}

/// The keys of the lock "a", and the runs that ended without it.
pub const KEYS: [&str; 12] = {
    let [a, b, c, d, e, f, g, h, i, j, k] = lua::KEYS;
    [a, b, c, d, e, f, g, h, i, j, k, "{redlock:a}:skips"]
};

pub const TOKENS: [&str; 4] = ["t1", "t2", "t3", "t4"];
const WHOS: [&str; 4] = [
    lua::WHO,
    r#"{"host":"h","user":"u","pid":1,"command":["c"]}"#,
    r#"{"host":"g","instance":"i","order":7,"skew":500}"#,
    "{}",
];

/// A command of a script.
pub const PROBE: &str = "return redis.call(unpack(ARGV))";
/// The others take one, too.
const LUA: [&str; 9] = [
    PROBE,
    "local answer = redis.pcall(unpack(ARGV)) return {type(answer), answer, type(answer) == 'table' and answer.err}",
    "return {redis.call('TYPE', KEYS[1]).ok, tostring(redis.call('GET', 'no such key')), redis.call('SET', 'b', 1)}",
    "return {1, 2.9, -2.9, '3', true, false, 5, nil, 7}",
    "return {{ok = 'fine'}, {err = 'BAD luck'}, {}, {1, {2}}, redis.sha1hex(ARGV[1] or '')}",
    "redis.call('SET', 'b', 2^53) redis.call('SET', 'c', 1/3) redis.call('SET', 'd', 1e300) return redis.call('GET', 'c')",
    "if ARGV[3] then return redis.error_reply('NO luck') end return redis.status_reply('LUCK')",
    "redis.call('LPUSH', KEYS[7], 'x') local none = nil return none.field",
    "redis.call('LPUSH', KEYS[7], 'x', 7) return redis.call('HSET', KEYS[1], 'x')",
];

/// A list of deeds.
pub fn lists() -> impl Strategy<Value = Vec<Deed>> {
    vec(deed(), 1..40)
}

fn deed() -> impl Strategy<Value = Deed> {
    let is_sharded = !SERVER.is_before(7, 0);
    let shard = if is_sharded { 2 } else { 0 };
    let time = prop_oneof![
        8 => 0..3_000_000_i64,
        2 => 0..200_000_000_i64,
        // To the last millisecond of an expiry, and one further.
        8 => (select(&[7, 1000, 2000, 2500, 3000, 5000, 10_000][..]), 0..2_i64)
            .prop_map(|(long, more)| (long + more) * 1000),
        1 => -20_000_000..0_i64,
        1 => Just(61 * 24 * 3_600_000_000_i64),
    ];
    // Such a state is soon over again, as little happens in it.
    prop_oneof![
        16 => time.prop_map(Deed::Time),
        6 => (channel(), any::<bool>()).prop_map(|(channel, on)| Deed::Listen(channel, on)),
        shard => (channel(), any::<bool>()).prop_map(|(channel, on)| Deed::ListenInShard(channel, on)),
        2 => rarely().prop_map(Deed::Full),
        2 => rarely().prop_map(Deed::Replica),
        2 => (name(), prop::bool::weighted(0.8)).prop_map(|(name, on)| Deed::Permit(name, on)),
        20 => command().prop_map(Deed::Command),
        50 => script(),
        12 => (select(&LUA[..]), command()).prop_map(|(text, args)| match &args[0][..] {
            // Their answers differ in what Redis doesn't promise.
            b"INFO" => Deed::Command(args),
            _ => Deed::Lua(text, args),
        }),
    ]
}

fn rarely() -> impl Strategy<Value = bool> {
    prop::bool::weighted(0.25)
}

/// The commands that this server has.
fn name() -> impl Strategy<Value = &'static str> {
    let is_old = SERVER.is_before(7, 0);
    let names = commands::names().filter(move |name| !is_old || *name != "SPUBLISH");
    select(names.collect::<Vec<_>>())
}

/// One of the words between the slashes.
fn one_of(words: &str) -> BoxedStrategy<String> {
    let words = words.split('/').map(str::to_owned);
    select(words.collect::<Vec<_>>()).boxed()
}

fn token() -> impl Strategy<Value = &'static str> {
    select(&TOKENS[..])
}

/// The channel of a waiter.
fn channel() -> impl Strategy<Value = String> {
    token().prop_map(|token| format!("{{redlock:a}}:{}", lua::id(token)))
}

const TTLS: &str = "1000/2500/10000/7/30001";

/// A word of a kind, or one of those between slashes.
fn word(kind: &str) -> BoxedStrategy<String> {
    let who = || select(&WHOS[..]).prop_map(str::to_owned);
    match kind {
        "key" => select(&KEYS[..]).prop_map(str::to_owned).boxed(),
        "token" => token().prop_map(str::to_owned).boxed(),
        "channel" => channel().boxed(),
        "id" => prop_oneof![4 => token().prop_map(lua::id), 1 => one_of("/x")].boxed(),
        "who" => who().boxed(),
        "who?" => prop_oneof![who(), one_of("")].boxed(),
        "token?" => prop_oneof![word("token"), one_of("")].boxed(),
        "ttl" => one_of(TTLS),
        "whole" => prop_oneof![
            8 => (-3..12_i64).prop_map(|n| n.to_string()),
            4 => (0..100_000_i64).prop_map(|n| n.to_string()),
            1 => one_of("/x/1.5/007/+1/ 1/-0/9223372036854775807/-9223372036854775808/9223372036854775808"),
        ]
        .boxed(),
        "score" => score(),
        "bound" => prop_oneof![
            3 => score(),
            1 => score().prop_map(|score| format!("({score}")),
            2 => one_of("-inf/+inf/(1/(x"),
        ]
        .boxed(),
        "member" => prop_oneof![
            4 => word("token"),
            1 => one_of("slot t1/limit t1/slot t2/limit t2//a"),
        ]
        .boxed(),
        "field" => prop_oneof![
            2 => word("token"),
            2 => one_of("fence/ticket/frozen/notified/succeeded/number/superseded"),
            1 => (one_of("cancelled/forced/released/left/removed"), token())
                .prop_map(|(kind, token)| format!("{kind}:{}", lua::id(token))),
        ]
        .boxed(),
        "value" => value(),
        words => one_of(words),
    }
}

/// Words of these kinds.
fn words(kinds: &str) -> Vec<BoxedStrategy<String>> {
    kinds.split_whitespace().map(word).collect()
}

fn score() -> BoxedStrategy<String> {
    // Other versions write these in another way.
    let odd = if SERVER.is_before(7, 2) {
        "0.1/-2.5e-7/1e17/4398046511104e6/123456789012345678/inf/-inf/1e400/nan/x/"
    } else {
        "inf/-inf/1e400/nan/x/"
    };
    prop_oneof![
        8 => (-5..5_i64).prop_map(|n| n.to_string()),
        4 => (0..20_000_i64).prop_map(|n| (1_577_836_800_000 + n).to_string()),
        1 => one_of(odd),
    ]
    .boxed()
}

/// What may stand in a key: what the scripts write there, and anything.
fn value() -> BoxedStrategy<String> {
    let moment = || (0..40_000_i64).prop_map(|ms| 1_577_836_780_000 + ms);
    prop_oneof![
        3 => word("token"),
        2 => one_of("redlock:shared/redlock:slots/redlock:frozen"),
        2 => word("whole"),
        2 => moment().prop_map(|at| format!("{at} {{}}")),
        1 => moment().prop_map(|at| format!("{at} {}", at - 1000)),
        2 => (moment(), select(&["held", "granted", "granted:3", "kept"][..]), select(&WHOS[..])).prop_map(
            |(at, phase, who)| format!("{at}000 {at} 1 1 0 {phase} {who}")),
        2 => (moment(), moment(), 0..2, 1..4, 0..3, select(&WHOS[..])).prop_map(
            |(dies, seen, knows, limit, listens, who)| format!("{dies}:{seen}:{knows} {limit} {seen} 0 {listens} {who}")),
    ]
    .boxed()
}

/// A command, as it is meant, with its options; or, rarely, with any words.
fn command() -> impl Strategy<Value = Vec<Bytes>> {
    prop_oneof![
        9 => name().prop_flat_map(|name| meant(name).prop_map(move |words| (name, words))),
        1 => name().prop_flat_map(|name| {
            let any = prop_oneof![word("key"), value(), word("whole"), word("member"), word("bound")];
            vec(any, 0..5).prop_map(move |words| (name, words))
        }),
    ]
    .prop_map(|(name, words)| {
        let words = words.into_iter().map(String::into_bytes);
        std::iter::once(name.as_bytes().to_vec())
            .chain(words)
            .collect()
    })
}

/// Calls of commands: the kinds of their words, those that are repeated, and options with bars between.
const MEANT: [(&str, &str, &str, &str); 20] = [
    ("TIME", "", "", ""),
    ("INFO", "server", "", ""),
    // So rarely that something is left to look at.
    ("FLUSHALL", "", "", "x y|x y|x y|SYNC"),
    ("DEL EXISTS UNLINK", "", "key", ""),
    ("GET PTTL TYPE ZCARD", "key", "", ""),
    ("GETRANGE LRANGE LTRIM", "key whole whole", "", ""),
    ("HDEL HMGET", "key", "field", ""),
    ("HGET", "key field", "", ""),
    ("HSCAN ZSCAN", "key", "", "0|0 COUNT 1000|0 COUNT 0|x|0 x"),
    ("HSET", "key", "field value", ""),
    ("LPUSH", "key", "value", ""),
    ("PEXPIRE", "key whole", "", ""),
    ("PUBLISH SPUBLISH", "channel value", "", ""),
    (
        "SET",
        "key value",
        "",
        "|NX PX 5000|px 3000 nx|XX KEEPTTL|KEEPTTL|PX 1|PX 0|PX -5|PX 1.5|PX|NX XX|PX 5 KEEPTTL|EX 7\
         |PX 9223372036854775807|PXAT 1577836805000|NY",
    ),
    ("ZADD", "key", "score member", ""),
    ("ZRANGE", "key whole whole", "", "|WITHSCORES|withscores|x"),
    (
        "ZRANGEBYSCORE",
        "key bound bound",
        "",
        "|WITHSCORES|LIMIT 0 1000|LIMIT 1 1|LIMIT 1 -1 WITHSCORES|LIMIT -1 1|LIMIT 1|LIMIT x 1",
    ),
    ("ZREM", "key", "member", ""),
    ("ZREMRANGEBYSCORE", "key bound bound", "", ""),
    ("ZRANK ZSCORE", "key member", "", ""),
];

fn meant(name: &str) -> impl Strategy<Value = Vec<String>> + use<> {
    let mut all = MEANT.iter();
    let row = all.find(|(names, ..)| names.split(' ').any(|other| other == name));
    let (_, first, repeated, options) = row.unwrap_or_else(|| panic!("{name} is not called yet"));
    let repeated = match *repeated {
        "" => Just(Vec::new()).boxed(),
        kinds => vec(words(kinds), 1..3)
            .prop_map(|parts| parts.concat())
            .boxed(),
    };
    let options: Vec<&str> = options.split('|').collect();
    let options = select(options).prop_map(|words| {
        words
            .split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    });
    (words(first), repeated, options).prop_map(|(a, b, c)| [a, b, c].concat())
}

/// Returns the keys that this script takes with these arguments.
pub fn keys_of(script: &str, args: &[Bytes]) -> Vec<String> {
    let all = KEYS.map(str::to_owned);
    match script {
        "prolong" => {
            let token = String::from_utf8_lossy(args.first().map_or(b"", Vec::as_slice));
            let notice = format!("{{redlock:a}}:cancelled:{}", lua::id(&token));
            vec![all[0].clone(), all[2].clone(), notice]
        }
        _ => all.to_vec(),
    }
}

/// Arguments of `prolong` for a token.
pub fn prolonging(token: &str, ttl: &str) -> Vec<String> {
    let kept = ttl.parse::<i64>().map_or(0, |ttl| ttl + 30 * 86_400_000);
    [token, ttl, &kept.to_string()].map(str::to_owned).into()
}

/// A shipped script with arguments that make sense, of which one may be something else or missing.
fn script() -> impl Strategy<Value = Deed> {
    let names = lua::SCRIPTS.map(|(name, _)| name);
    let often = [
        "take", "take", "acquire", "acquire", "acquire", "free", "release", "renew", "prolong",
    ];
    let names = select([&names[..], &often].concat());
    names.prop_flat_map(|name| {
        let mistake = prop_oneof![
            12 => Just(None),
            1 => (0..16_usize, value()).prop_map(|(at, word)| Some((at, Some(word)))),
            1 => (3..16_usize).prop_map(|at| Some((at, None))),
        ];
        (arguments(name), mistake).prop_map(move |(mut args, mistake)| {
            match mistake {
                Some((at, Some(word))) if at < args.len() => args[at] = word,
                Some((at, None)) => args.truncate(at),
                _ => {}
            }
            Deed::Script(name, args.into_iter().map(String::into_bytes).collect())
        })
    })
}

/// Arguments of scripts, after those that all have; `keep` and `inspect` have nothing before.
const ARGUMENTS: [(&str, &str); 16] = [
    ("take", "token ttl 1 who"),
    ("free", "token 0 status:0/status:0/status:1 0"),
    (
        "acquire",
        "token ttl 1/1/1/2/3/1000000000 who //listen/listen/poll/shard ///1/2/5 0/0/0/1/2 ///3/8 0/0/5000 0/1",
    ),
    ("renew", "token ttl //=/=j 0/1"),
    ("check", "token 0/5000"),
    (
        "release",
        "token 0/1 status:0/status:0/status:1//cancelled/released 0/0/3000",
    ),
    ("force", "id who? 0/0/ 0"),
    ("guard", "token? aaaaaaaaaaaa/bbbbbbbbbbbb who 0/1"),
    ("leave", "token aaaaaaaaaaaa/bbbbbbbbbbbb"),
    ("stop", "id who 0"),
    ("freeze", "ttl who"),
    ("thaw", ""),
    ("history", ""),
    ("skip", "recent/busy 15 who who?"),
    ("keep", "token ttl"),
    ("inspect", "0/10 0/0/ -inf/-inf/(1/"),
];

fn arguments(name: &str) -> BoxedStrategy<Vec<String>> {
    if name == "prolong" {
        let both = (token(), one_of(TTLS));
        return both
            .prop_map(|(token, ttl)| prolonging(token, &ttl))
            .boxed();
    }
    let row = ARGUMENTS.iter().find(|(script, _)| *script == name);
    let (_, kinds) = row.unwrap_or_else(|| panic!("{name} is not called yet"));
    let first = match name {
        "keep" | "inspect" => "",
        _ => "a {redlock:a}: 200/200/2/0",
    };
    [words(first), words(kinds)].concat().boxed()
}
