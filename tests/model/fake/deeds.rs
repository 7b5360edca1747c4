//! Deeds on a real server and on the one in memory: commands, scripts, and changes of their environment.

use crate::protocol::model::redis::Bytes;
use crate::protocol::model::support::lua;

#[derive(Clone, Debug)]
pub enum Deed {
    /// Starts or ends a subscription to a channel.
    Listen(String, bool),
    ListenInShard(String, bool),
    /// Takes all free memory away, or gives it back.
    Full(bool),
    /// Makes the server a replica, or the primary again.
    Replica(bool),
    /// Permits or forbids a command.
    Permit(&'static str, bool),
    Command(Vec<Bytes>),
    Script(&'static str, Vec<Bytes>),
}

/// Keys of the lock "a", and of the runs that ended without it.
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

/// Returns the arguments of `prolong` for a token.
pub fn prolonging(token: &str, ttl: &str) -> Vec<String> {
    let kept = ttl.parse::<i64>().map_or(0, |ttl| ttl + 30 * 86_400_000);
    [token, ttl, &kept.to_string()].map(str::to_owned).into()
}
