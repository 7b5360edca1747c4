//! The shipped scripts, and the common arguments of their calls.

macro_rules! scripts {
    ($($name:literal),*) => {
        [$(($name, include_str!(concat!(env!("OUT_DIR"), "/", $name, ".lua")))),*]
    };
}

/// Scripts by their names, as redlock sends them.
pub const SCRIPTS: [(&str, &str); 17] = scripts![
    "take", "acquire", "renew", "prolong", "keep", "check", "free", "release", "force", "stop",
    "freeze", "thaw", "skip", "history", "inspect", "guard", "leave"
];

/// Returns the script of this name.
pub fn source(name: &str) -> &'static str {
    let entry = SCRIPTS.iter().find(|(script, _)| *script == name);
    entry.unwrap_or_else(|| panic!("no script {name}")).1
}

/// Keys of the lock "a", in the order of the scripts.
pub const KEYS: [&str; 11] = [
    "redlock:a",
    "{redlock:a}:state",
    "{redlock:a}:meta",
    "{redlock:a}:holders",
    "{redlock:a}:queue",
    "{redlock:a}:waiters",
    "{redlock:a}:history",
    "{redlock:}:index",
    "{redlock:a}:slots",
    "{redlock:a}:exempt",
    "{redlock:a}:guards",
];

/// A run with a watchdog over its lock.
pub const WHO: &str = r#"{"host":"h","user":"u","pid":1,"command":["c"],"instance":"i"}"#;

/// Limit of a shared lock: none.
pub const SHARED: &str = "1000000000";

/// Returns the public id of a token.
pub fn id(token: &str) -> String {
    let mut digits = sha1_smol::Sha1::from(token).digest().to_string();
    digits.truncate(12);
    digits
}
