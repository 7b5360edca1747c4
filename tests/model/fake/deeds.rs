//! Deeds to a real server and to the one in memory: commands and scripts, and what changes around them.

use crate::protocol::model::redis::Bytes;
use crate::protocol::model::support::lua;

#[derive(Clone, Debug)]
pub enum Deed {
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
}

/// The keys of the lock "a", and the runs that ended without it.
pub const KEYS: [&str; 12] = {
    let [a, b, c, d, e, f, g, h, i, j, k] = lua::KEYS;
    [a, b, c, d, e, f, g, h, i, j, k, "{redlock:a}:skips"]
};

/// Returns the keys that this script takes with these arguments.
pub fn keys_of(script: &str, args: &[Bytes]) -> Vec<Bytes> {
    let all = KEYS.map(|key| key.as_bytes().to_vec());
    match script {
        "prolong" => {
            let token = String::from_utf8_lossy(args.first().map_or(b"", Vec::as_slice));
            let notice = format!("{{redlock:a}}:cancelled:{}", lua::id(&token));
            vec![all[0].clone(), all[2].clone(), notice.into()]
        }
        _ => all.to_vec(),
    }
}

/// Arguments of `prolong` for a token.
pub fn prolonging(token: &str, ttl: &str) -> Vec<String> {
    let kept = ttl.parse::<i64>().map_or(0, |ttl| ttl + 30 * 86_400_000);
    [token, ttl, &kept.to_string()].map(str::to_owned).into()
}
