//! Secrets are masked before anything is stored for others to see. Pure.
//!
//! A secret is known by its name: `--password=x`, `--api-key x`, `DB_PASSWORD=x`, `"token": "x"`,
//! `Authorization: x`; by its form (`ghp_x`); or by its place: the password of a URL, and the value of a few options
//! without a telling name (`mysql -px`). A script isn't parsed: its words are judged as those of a command line are.

use std::borrow::Cow;
use std::ops::Range;

/// Shown in place of a secret.
const MASK: &str = "***";

/// A text, or a script, without its secrets.
pub(super) fn masked(text: &str) -> Cow<'_, str> {
    without(text, secrets_in(text))
}

/// The words of a command line, one after the other.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Words {
    /// The word before was an option whose value has a secret.
    expected: Option<Sensitive>,
    /// It was an option like `-c` of a shell.
    is_script: bool,
    client: Option<&'static Client>,
}

/// A value that is a secret, or contains one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sensitive {
    Secret,
    /// A command that prints a secret, and may contain it.
    Printing,
    /// A secret, unless it is the path of one.
    SecretOrPath,
    /// A user and a password, with a colon between them.
    UserAndPassword,
    /// A header of HTTP.
    Header,
}

impl Words {
    /// The next word without its secrets.
    pub(super) fn masked<'a>(&mut self, word: &'a str) -> Cow<'a, str> {
        let is_script = std::mem::take(&mut self.is_script) && !word.starts_with('-');
        if let Some(secret) = self.secret_in(word) {
            return without(word, Some(secret));
        }
        if is_script {
            return masked(word);
        }
        // The whole value, whatever characters it has.
        let name = word.len() - word.trim_start_matches(is_name).len();
        let value = word[name..].strip_prefix('=').unwrap_or_default();
        match secret_named(&word[..name]).filter(|_| !value.is_empty()) {
            Some(named) if named.begins_in(value).is_some() => {
                without(word, Some(name + 1..word.len()))
            }
            Some(_) => Cow::Borrowed(word),
            None => masked(word),
        }
    }

    /// The secret in the next word, by its place.
    fn secret_in(&mut self, word: &str) -> Option<Range<usize>> {
        let expected = self.expected.take();
        if !word.starts_with('-') {
            let name = word.rsplit('/').next().unwrap_or_default();
            let client = CLIENTS.iter().find(|known| known.names.contains(&name));
            self.client = client.or(self.client);
            return Some(expected?.begins_in(word)?..word.len());
        }
        let (option, value_at) = match word.split_once('=') {
            Some((option, _)) => (option, option.len() + 1),
            None => (word, word.len()),
        };
        let short = self.client.and_then(|client| client.short_option(word));
        let (value, at) = if let Some(short) = short {
            short
        } else if PAIRS.contains(&option) && self.client.is_some_and(Client::takes_pairs) {
            (Sensitive::UserAndPassword, value_at)
        } else if HEADERS.contains(&option) {
            (Sensitive::Header, value_at)
        } else if word.starts_with("-H") {
            (Sensitive::Header, 2)
        } else {
            self.expected = secret_named(word).filter(|_| word.chars().all(is_name));
            self.is_script = word.ends_with('c') && !word.starts_with("--");
            return None;
        };
        if at == word.len() {
            self.expected = Some(value);
            return None;
        }
        Some(at + value.begins_in(&word[at..])?..word.len())
    }
}

impl Sensitive {
    /// Where the secret begins in such a value, if there is one.
    fn begins_in(self, text: &str) -> Option<usize> {
        let after_colon = || text.find(':').map(|colon| colon + 1);
        let start = match self {
            Self::SecretOrPath if is_path(text) => return None,
            Self::Secret | Self::Printing | Self::SecretOrPath => 0,
            Self::UserAndPassword => after_colon()?,
            Self::Header => {
                let start = after_colon()?;
                let name = &text[..start - 1];
                if !name.chars().all(is_name) || secret_named(name).is_none() {
                    return None;
                }
                start + text[start..].len() - text[start..].trim_start().len()
            }
        };
        (start < text.len()).then_some(start)
    }
}

/// A program with a short option for a secret.
#[derive(Debug)]
struct Client {
    names: &'static [&'static str],
    /// Its short options that take a value.
    valued: &'static str,
    /// Those of them that take a secret.
    secrets: &'static str,
    kind: Sensitive,
    /// A secret is only in the same word as its option.
    only_attached: bool,
}

impl Client {
    fn takes_pairs(&self) -> bool {
        self.kind == Sensitive::UserAndPassword
    }

    /// The value of a group of short options, and where it begins: at the end of the word if it is the next one.
    fn short_option(&self, word: &str) -> Option<(Sensitive, usize)> {
        let mut letters = word.char_indices().skip(1);
        let (at, option) = letters.find(|(_, letter)| self.valued.contains(*letter))?;
        let at = at + option.len_utf8();
        let has_secret = self.secrets.contains(option) && !word.starts_with("--");
        let is_here = at < word.len() || !self.only_attached;
        (has_secret && is_here).then_some((self.kind, at))
    }
}

const CLIENTS: [Client; 5] = [
    Client {
        names: &[
            "mysql",
            "mysqldump",
            "mysqladmin",
            "mysqlimport",
            "mariadb",
            "mariadb-dump",
            "mariadb-admin",
        ],
        valued: "DPSehpu",
        secrets: "p",
        kind: Sensitive::Secret,
        only_attached: true,
    },
    Client {
        names: &["sshpass"],
        valued: "Pdfp",
        secrets: "p",
        kind: Sensitive::Secret,
        only_attached: false,
    },
    Client {
        names: &["redis-cli"],
        valued: "DXadhinprstu",
        secrets: "a",
        kind: Sensitive::Secret,
        only_attached: false,
    },
    Client {
        names: &["curl"],
        valued: "ACDEFHKPQTUXYbcdehmortuwxyz",
        secrets: "Uu",
        kind: Sensitive::UserAndPassword,
        only_attached: false,
    },
    // As in `docker login`.
    Client {
        names: &["login"],
        valued: "pu",
        secrets: "p",
        kind: Sensitive::Secret,
        only_attached: false,
    },
];

/// Options with a user and a password.
const PAIRS: [&str; 2] = ["--user", "--proxy-user"];

/// Options with a header of HTTP.
const HEADERS: [&str; 3] = ["-H", "--header", "--proxy-header"];

/// The text with these parts masked.
fn without(text: &str, secrets: impl IntoIterator<Item = Range<usize>>) -> Cow<'_, str> {
    let mut secrets = secrets.into_iter().peekable();
    if secrets.peek().is_none() {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len());
    let mut copied = 0;
    for secret in secrets {
        safe.push_str(&text[copied..secret.start]);
        safe.push_str(MASK);
        copied = secret.end;
    }
    safe.push_str(&text[copied..]);
    Cow::Owned(safe)
}

/// A character of a name: of a variable, an option, a URL's scheme.
fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}

/// Between the words of a script.
fn is_separator(c: char) -> bool {
    c.is_whitespace() || matches!(c, ';' | '|' | '&' | '(' | ')' | '<' | '>' | '`')
}

/// The marks of a quotation: the last is one within another, as in `sh -c "a \"b c\""`.
const MARKS: [&str; 3] = ["'", "\"", "\\\""];

/// Finds the secrets in a text.
fn secrets_in(text: &str) -> Vec<Range<usize>> {
    let mut scan = Scan {
        text,
        at: 0,
        quote: "",
        words: Words::default(),
        word_end: 0,
    };
    let mut secrets = Vec::new();
    while scan.at < text.len() {
        if let Some(secret) = scan.next_secret() {
            scan.at = scan.at.max(secret.end);
            if !secret.is_empty() && !is_reference(&text[secret.clone()]) {
                secrets.push(secret);
            }
        }
    }
    secrets
}

/// A text, and how far it was read.
struct Scan<'a> {
    text: &'a str,
    at: usize,
    /// The mark of the quotation that it is in.
    quote: &'a str,
    words: Words,
    /// The end of the word that was read last.
    word_end: usize,
}

impl Scan<'_> {
    /// Reads on by a mark, a name or another character; the secret that begins there, if one does.
    fn next_secret(&mut self) -> Option<Range<usize>> {
        let (text, start) = (self.text, self.at);
        let rest = &text[start..];
        if let Some(mark) = mark_of(rest) {
            self.at += mark.len();
            if self.quote == mark {
                self.quote = "";
            } else if self.words.expected.is_some() && start >= self.word_end {
                return self.quoted_value(mark);
            } else if self.quote.is_empty() {
                self.quote = mark;
            }
            return None;
        }
        let c = rest.chars().next()?;
        if start >= self.word_end && !is_separator(c) {
            self.word_end = self.value_end(start);
            let word = &text[start..self.word_end];
            let is_descriptor = word.bytes().all(|b| b.is_ascii_digit())
                && text[self.word_end..].starts_with(['<', '>']);
            if !is_descriptor && let Some(secret) = self.words.secret_in(word) {
                return Some(start + secret.start..start + secret.end);
            }
        }
        if let Some(length) = secret_by_form(rest) {
            return Some(start..start + length);
        }
        if is_name(c) {
            self.at = text.len() - rest.trim_start_matches(is_name).len();
            return self.secret_after(start..self.at);
        }
        self.at += c.len_utf8();
        match c {
            ';' | '|' | '&' | '\n' => self.words = Words::default(),
            // The next word is the file of a redirection.
            '<' | '>' => self.words.expected = None,
            _ => {}
        }
        None
    }

    /// The value behind this mark, which has the secret of the option before it.
    fn quoted_value(&mut self, mark: &str) -> Option<Range<usize>> {
        let (text, start) = (self.text, self.at);
        let end = text[start..]
            .find(mark)
            .map_or(text.len(), |length| start + length);
        self.at = text.len().min(end + mark.len());
        let secret = self.words.secret_in(&text[start..end])?;
        Some(start + secret.start..start + secret.end)
    }

    /// The secret that a name introduces, if it does.
    fn secret_after(&self, name: Range<usize>) -> Option<Range<usize>> {
        let (text, end) = (self.text, name.end);
        let in_query = text[..name.start].ends_with(['?', '&']);
        let (name, rest) = (&text[name], &text[end..]);
        if let Some(rest) = rest.strip_prefix("://") {
            return login(text, name, text.len() - rest.len());
        }
        if rest.starts_with('=') {
            let start = end + 1;
            let named = match name {
                // Signed URLs of Azure and AWS.
                "sig" | "X-Amz-Signature" if in_query => Sensitive::Secret,
                _ => secret_named(name)?,
            };
            let value = match named {
                // Without quotation marks it may go on behind a space.
                Sensitive::Printing if mark_of(&text[start..]).is_none() => start..text.len(),
                _ => start..self.value_end(start),
            };
            let inner = text[value.clone()].trim_matches(['"', '\'']);
            return named.begins_in(inner).map(|_| value);
        }
        if let Some(value) = rest.strip_prefix(": ") {
            let start = text.len() - value.trim_start().len();
            return is_header(name).then(|| start..self.line_end(start));
        }
        // A field of a JSON object.
        let mark = mark_of(rest)?;
        let value = rest[mark.len()..].trim_start().strip_prefix(':')?;
        let value = value.trim_start().strip_prefix(mark)?;
        let start = text.len() - value.len();
        let length = value.find(mark).unwrap_or(value.len());
        secret_named(name).map(|_| start..start + length)
    }

    /// The end of the value that begins here: of its last part without a space, or in quotation marks.
    fn value_end(&self, start: usize) -> usize {
        let text = self.text;
        let (mut at, mut quote) = (start, "");
        while let Some(c) = text[at..].chars().next() {
            let mark = mark_of(&text[at..]);
            if quote.is_empty() && (is_separator(c) || mark.is_some_and(|mark| mark == self.quote))
            {
                return at;
            }
            at += match mark {
                Some(mark) if quote.is_empty() => {
                    quote = mark;
                    mark.len()
                }
                Some(mark) => {
                    quote = if mark == quote { "" } else { quote };
                    mark.len()
                }
                None if c == '\\' => 1 + text[at + 1..].chars().next().map_or(0, char::len_utf8),
                None => c.len_utf8(),
            };
        }
        text.len()
    }

    /// The end of the quotation that this is in, or of the line.
    fn line_end(&self, start: usize) -> usize {
        let rest = &self.text[start..];
        let line = rest.find('\n').unwrap_or(rest.len());
        let quotation = Some(self.quote).filter(|mark| !mark.is_empty());
        let quotation = quotation.and_then(|mark| rest.find(mark));
        start + line.min(quotation.unwrap_or(line))
    }
}

/// The mark of a quotation that a text begins with.
fn mark_of(text: &str) -> Option<&'static str> {
    MARKS.into_iter().find(|mark| text.starts_with(mark))
}

/// Whether a value only names a variable, or a command whose output it is.
fn is_reference(value: &str) -> bool {
    let value = value.trim_matches('"');
    let Some(name) = value.strip_prefix('$') else {
        return value.is_empty() || value.starts_with('`');
    };
    let braced = name.strip_prefix('{').and_then(|it| it.strip_suffix('}'));
    let is_name = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    name.starts_with('(') || is_name(braced.unwrap_or(name))
}

/// The password in a URL whose authority begins here; or the user, where that may be a token.
fn login(text: &str, scheme: &str, start: usize) -> Option<Range<usize>> {
    let url = &text[start..];
    let ends = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '>' | '`');
    let url = &url[..url.find(ends).unwrap_or(url.len())];
    if let Some(hook) = url.strip_prefix("hooks.slack.com/services/") {
        let start = start + url.len() - hook.len();
        let is_part = |c: char| is_name(c) || c == '/';
        let end = start + hook.find(|c| !is_part(c)).unwrap_or(hook.len());
        return Some(start..end);
    }
    let path = url.find(['/', '?', '#']).unwrap_or(url.len());
    // A password that isn't encoded may contain these. A number after the colon is a port.
    let at = match (url[..path].rfind('@'), url[..path].find(':')) {
        (Some(at), _) => at,
        (None, Some(colon)) if !url[colon + 1..path].bytes().all(|b| b.is_ascii_digit()) => {
            url.rfind('@')?
        }
        _ => return None,
    };
    let (user, password) = url[..at].split_once(':').unwrap_or((&url[..at], ""));
    let may_be_token = scheme == "git" || scheme.starts_with("http") || scheme.contains("redis");
    if may_be_token && password.is_empty() {
        return Some(start..start + user.len());
    }
    if secret_by_form(user).is_some() {
        return Some(start..start + at);
    }
    Some(start + user.len() + 1..start + at).filter(|_| !password.is_empty())
}

/// How long the secret is that begins here, if it is known by its form.
fn secret_by_form(text: &str) -> Option<usize> {
    let run = |is_part: fn(char) -> bool| text.len() - text.trim_start_matches(is_part).len();
    let word = &text[..run(is_name)];
    // A JWT, or its beginning, where a text is cut.
    if word.starts_with("eyJ") && word.len() > RANDOM && text[word.len()..].starts_with('.') {
        return Some(run(|c| is_name(c) || c == '.'));
    }
    FORMS.iter().find_map(|form| {
        let rest = text.strip_prefix(form)?;
        let random = rest.len() - rest.trim_start_matches(is_name).len();
        (random >= RANDOM).then_some(form.len() + random)
    })
}

/// What tokens begin with: of GitHub, GitLab, Slack, AWS, Vault and Anthropic.
const FORMS: [&str; 15] = [
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "github_pat_",
    "glpat-",
    "xoxa-",
    "xoxb-",
    "xoxp-",
    "xoxr-",
    "xoxs-",
    "AKIA",
    "hvs.",
    "sk-ant-",
];

/// How many characters follow at least; fewer are no token.
const RANDOM: usize = 10;

/// What has this name, if that is a secret: of an option, a variable, a field.
fn secret_named(name: &str) -> Option<Sensitive> {
    if matches!(name, "PWD" | "OLDPWD") {
        return None;
    }
    // Addresses of a web hook are secrets, too.
    if name == "REDLOCK_HOOK" {
        return Some(Sensitive::Printing);
    }
    let parts = parts_of(name.trim_start_matches('-'));
    let is = |part: &str, all: &[&str]| all.iter().any(|one| part.eq_ignore_ascii_case(one));
    let (first, last) = (parts[0], parts[parts.len() - 1]);
    if is(first, &DOING) {
        return None;
    }
    if let [.., what, _] = parts[..]
        && is(last, &["command", "cmd"])
        && names_text(what)
    {
        return Some(Sensitive::Printing);
    }
    if is(last, &ABOUT) {
        return None;
    }
    let keys = parts
        .windows(2)
        .any(|two| is(without_number(two[1]), &["key", "keys"]) && is(two[0], &KEYS));
    let is_key = |part: &&str| is(part, &WHOLE) || ends_in(part, &KEY_ENDINGS);
    if parts.iter().any(|part| names_text(part)) {
        Some(Sensitive::Secret)
    } else if keys || parts.iter().any(is_key) {
        Some(Sensitive::SecretOrPath)
    } else {
        None
    }
}

/// The words of a name, as of `auth-token`, `authToken`.
fn parts_of(name: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    for part in name.split(['-', '_']) {
        let inner = part.as_bytes().windows(2).zip(1..);
        let borders =
            inner.filter(|(two, _)| two[0].is_ascii_lowercase() && two[1].is_ascii_uppercase());
        let mut start = 0;
        for (_, border) in borders {
            parts.push(&part[start..border]);
            start = border;
        }
        parts.push(&part[start..]);
    }
    parts
}

/// Without the digits at its end, as of `PASSWORD2`.
fn without_number(part: &str) -> &str {
    part.trim_end_matches(|c: char| c.is_ascii_digit())
}

/// Whether a word ends in one of these, whatever its case.
fn ends_in(part: &str, all: &[&str]) -> bool {
    let part = without_number(part);
    all.iter().any(|one| {
        let tail = part.len().checked_sub(one.len());
        tail.and_then(|tail| part.get(tail..))
            .is_some_and(|tail| tail.eq_ignore_ascii_case(one))
    })
}

/// Whether a word names what is always a secret itself, and never the path of one.
fn names_text(part: &str) -> bool {
    ends_in(part, &TEXT_ENDINGS) || (ends_in(part, &["pass"]) && !ends_in(part, &NO_PASSWORDS))
}

/// Whether a value is the path of a file. A key in base64 may begin with a slash, too.
fn is_path(value: &str) -> bool {
    let is_random = |run: &str| {
        run.len() >= 16
            && run.bytes().any(|b| b.is_ascii_digit())
            && run.bytes().any(|b| b.is_ascii_lowercase())
            && run.bytes().any(|b| b.is_ascii_uppercase())
    };
    let starts = |start: &&str| value.starts_with(start);
    ["./", "../", "~/", "$HOME/", "${HOME}/"].iter().any(starts)
        || value.starts_with('/')
            && !value.contains(['+', '='])
            && !value
                .split(|c: char| !c.is_ascii_alphanumeric())
                .any(is_random)
}

/// The ends of words that name a secret itself, as in PGPASSWORD.
const TEXT_ENDINGS: [&str; 6] = [
    "password",
    "passwords",
    "passwd",
    "pwd",
    "passphrase",
    "token",
];

/// The ends of words that name a secret, or the file that has it.
const KEY_ENDINGS: [&str; 8] = [
    "secret",
    "secrets",
    "credential",
    "credentials",
    "apikey",
    "accesskey",
    "secretkey",
    "privatekey",
];

/// The same, of whole words.
const WHOLE: [&str; 2] = ["auth", "authorization"];

/// Words that end in `pass` and name no password.
const NO_PASSWORDS: [&str; 16] = [
    "askpass",
    "bandpass",
    "bypass",
    "compass",
    "encompass",
    "firstpass",
    "highpass",
    "lowpass",
    "multipass",
    "onepass",
    "overpass",
    "singlepass",
    "surpass",
    "trespass",
    "twopass",
    "underpass",
];

/// Words that make a key a secret.
const KEYS: [&str; 7] = [
    "api",
    "access",
    "secret",
    "private",
    "auth",
    "encryption",
    "signing",
];

/// The first words of names that say what to do about a secret.
const DOING: [&str; 7] = ["ask", "no", "require", "rotate", "skip", "use", "with"];

/// The last words of names that only say something about a secret.
const ABOUT: [&str; 33] = [
    "sock",
    "socket",
    "file",
    "files",
    "path",
    "dir",
    "directory",
    "name",
    "type",
    "url",
    "uri",
    "endpoint",
    "host",
    "port",
    "ttl",
    "length",
    "len",
    "size",
    "count",
    "limit",
    "stdin",
    "fd",
    "command",
    "cmd",
    "env",
    "helper",
    "method",
    "mode",
    "user",
    "username",
    "policy",
    "prompt",
    "timeout",
];

/// Whether a name is that of a header of HTTP with a secret: `Authorization`, `X-Api-Key`.
fn is_header(name: &str) -> bool {
    let is_plain = name.eq_ignore_ascii_case("authorization");
    is_plain || (name.contains('-') && !name.starts_with('-') && secret_named(name).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A command line without its secrets.
    fn shown(words: &[&str]) -> String {
        let mut secrets = Words::default();
        let words: Vec<Cow<str>> = words.iter().map(|word| secrets.masked(word)).collect();
        words.join("|")
    }

    #[test]
    fn what_looks_like_a_secret_in_a_command_line_is_masked() {
        for (words, expected) in [
            (&["a", "--password=s3 cr&t", "b"][..], "a|--password=***|b"),
            (&["a", "--password", "s3cret", "b"], "a|--password|***|b"),
            (&["a", "--api-key", "s3cret", "-v"], "a|--api-key|***|-v"),
            (&["a", "--apiKey=s3cret"], "a|--apiKey=***"),
            (&["a", "--access_key=s3cret"], "a|--access_key=***"),
            (&["a", "-token", "s3cret"], "a|-token|***"),
            (
                &["env", "PGPASSWORD=s3cret", "psql"],
                "env|PGPASSWORD=***|psql",
            ),
            (
                &["env", "AWS_SECRET_ACCESS_KEY=s3", "x"],
                "env|AWS_SECRET_ACCESS_KEY=***|x",
            ),
            (&["env", "DB_PASS=$ecret"], "env|DB_PASS=***"),
            (
                &["docker", "run", "-eGH_TOKEN=s3"],
                "docker|run|-eGH_TOKEN=***",
            ),
            (
                &["helm", "--set", "db.password=s3,a=b"],
                "helm|--set|db.password=***",
            ),
            (&["java", "-Dapp.auth=s3"], "java|-Dapp.auth=***"),
            (&["a", "https://u:s3cret@h/p"], "a|https://u:***@h/p"),
            (&["a", "redis://:s3@h:1/2"], "a|redis://:***@h:1/2"),
            (
                &["a", "--url=redis://u:s/3@h:1"],
                "a|--url=redis://u:***@h:1",
            ),
            (
                &["curl", "https://h/?token=s3&x=1"],
                "curl|https://h/?token=***&x=1",
            ),
            (
                &["curl", "-H", "Authorization: Bearer s3"],
                "curl|-H|Authorization: ***",
            ),
            (&["curl", "-H", "X-Api-Key: s3"], "curl|-H|X-Api-Key: ***"),
            (&["curl", "-u", "ann:s3cret", "h"], "curl|-u|ann:***|h"),
            (&["/usr/bin/curl", "-uann:s3"], "/usr/bin/curl|-uann:***"),
            (
                &["curl", "-d", r#"{"password": "s3 x", "a": 1}"#],
                r#"curl|-d|{"password": "***", "a": 1}"#,
            ),
            (&["mysql", "-ps3cret", "db"], "mysql|-p***|db"),
            (&["sshpass", "-p", "s3cret", "ssh"], "sshpass|-p|***|ssh"),
            (&["redis-cli", "-a", "s3cret"], "redis-cli|-a|***"),
            (&["sh", "-c", "a --token s3 b"], "sh|-c|a --token *** b"),
            (&["bash", "-lc", "TOKEN=s3 a b"], "bash|-lc|TOKEN=*** a b"),
        ] {
            assert_eq!(shown(words), expected);
        }
    }

    #[test]
    fn a_client_is_known_behind_programs_that_run_it_and_in_scripts() {
        for (line, expected) in [
            (
                "sudo -u ann mysql -h db -pX",
                "sudo -u ann mysql -h db -p***",
            ),
            ("timeout 60 curl -u ann:X h", "timeout 60 curl -u ann:*** h"),
            (
                "kubectl exec pod -- mysql -pX",
                "kubectl exec pod -- mysql -p***",
            ),
            ("curl -fsSuann:X h", "curl -fsSuann:*** h"),
            ("curl -oux:y --user=ann:X h", "curl -oux:y --user=ann:*** h"),
            ("redis-cli -c -a X get k", "redis-cli -c -a *** get k"),
            ("curl -H X-Api-Key:X h", "curl -H X-Api-Key:*** h"),
            (
                "wget --header=X-Api-Key:X h",
                "wget --header=X-Api-Key:*** h",
            ),
            ("docker login -u ann -p X h", "docker login -u ann -p *** h"),
            ("SSHPASS=X sshpass -e ssh h", "SSHPASS=*** sshpass -e ssh h"),
            (
                "a --userpass=X --userpass Y",
                "a --userpass=*** --userpass ***",
            ),
            (
                "PASSWORD1=X a --api-key3 Z",
                "PASSWORD1=*** a --api-key3 ***",
            ),
            (
                "a --client-secret /wJalrXUtnFEMI7K7MDENG5 b",
                "a --client-secret *** b",
            ),
            (
                "a --password ./x --token=/y",
                "a --password *** --token=***",
            ),
        ] {
            assert_eq!(masked(line), expected);
            let words: Vec<&str> = line.split(' ').collect();
            assert_eq!(shown(&words), expected.replace(' ', "|"));
        }
        for (words, expected) in [
            (
                &["curl", "-HAuthorization: Bearer X", "h"][..],
                "curl|-HAuthorization: ***|h",
            ),
            (
                &["env", "DB=1", "curl", "-u", "a:s 3"],
                "env|DB=1|curl|-u|a:***",
            ),
            (&["bash", "-c", "mysql -pX"], "bash|-c|mysql -p***"),
        ] {
            assert_eq!(shown(words), expected);
        }
    }

    #[test]
    fn secrets_within_quotation_marks_and_compound_commands_are_masked() {
        for (line, expected) in [
            (
                "if mysql -pX; then mysql -pY; fi",
                "if mysql -p***; then mysql -p***; fi",
            ),
            (
                "for a in b; do mysql -pX; done",
                "for a in b; do mysql -p***; done",
            ),
            (
                "while ! redis-cli -a X; do a; done",
                "while ! redis-cli -a ***; do a; done",
            ),
            ("bash -c \"mysql -pX\"", "bash -c \"mysql -p***\""),
            (
                "sudo bash -c 'a; mysql -pX' b",
                "sudo bash -c 'a; mysql -p***' b",
            ),
            ("A=\"b c\" mysql -p'X Y' z", "A=\"b c\" mysql -p*** z"),
            ("mysql -h $(hostname) -pX", "mysql -h $(hostname) -p***"),
            ("mysql >log -pX &>b", "mysql >log -p*** &>b"),
            ("curl -u \"ann:X Y\" h", "curl -u \"ann:***\" h"),
            (
                "curl -H\"Authorization: Bearer X\" h",
                "curl -H\"Authorization: ***\" h",
            ),
            (
                "curl -H 'authorization:Bearer X' h",
                "curl -H 'authorization:***' h",
            ),
            (
                "bash -c \"curl -H 'X-Api-Key: X Y' h\"",
                "bash -c \"curl -H 'X-Api-Key: ***' h\"",
            ),
            (
                "bash -c \"a --token 'X Y' b\"",
                "bash -c \"a --token '***' b\"",
            ),
            (
                "bash -c \"a --token \\\"X Y\\\" b\"",
                "bash -c \"a --token \\\"***\\\" b\"",
            ),
            (
                "bash -c \"a --password=\\\"X Y\\\" b\"",
                "bash -c \"a --password=*** b\"",
            ),
            (
                "a --private-key '/srv/a b' c",
                "a --private-key '/srv/a b' c",
            ),
            // What a command prints is none of the text.
            ("TOKEN=$(cat x) a b", "TOKEN=$(cat x) a b"),
            ("a --token \"$(cat x)\" b", "a --token \"$(cat x)\" b"),
        ] {
            assert_eq!(masked(line), expected);
        }
    }

    #[test]
    fn what_looks_like_a_secret_in_a_line_for_a_shell_is_masked() {
        for (line, expected) in [
            ("PGPASSWORD=s3cret psql -l", "PGPASSWORD=*** psql -l"),
            ("a --password='s3 cret' b", "a --password=*** b"),
            ("a --password \"s3 cret\" b", "a --password \"***\" b"),
            ("a;TOKEN=s3;b", "a;TOKEN=***;b"),
            ("export TOKEN='a'\"b\" && x", "export TOKEN=*** && x"),
            ("ssh h 'TOKEN=s3 x y'", "ssh h 'TOKEN=*** x y'"),
            ("x --secret=s3\\ 4 y", "x --secret=*** y"),
            (
                "mysqldump -u a -ps3 db | gzip",
                "mysqldump -u a -p*** db | gzip",
            ),
            ("A=1 mysql -ps3", "A=1 mysql -p***"),
            ("ls; curl -u a:s3 h", "ls; curl -u a:*** h"),
            (
                "curl -H 'Authorization: Bearer s3' h",
                "curl -H 'Authorization: ***' h",
            ),
            (
                "git clone https://x:s3@h/r && make",
                "git clone https://x:***@h/r && make",
            ),
            (
                "curl -d \"{\\\"token\\\":\\\"s3\\\"}\" h",
                "curl -d \"{\\\"token\\\":\\\"***\\\"}\" h",
            ),
            ("TOKEN='$ecret' x", "TOKEN=*** x"),
            ("TOKEN=${A:-s3} x", "TOKEN=*** x"),
            ("é --passwd=ü x", "é --passwd=*** x"),
        ] {
            assert_eq!(masked(line), expected);
        }
    }

    #[test]
    fn what_is_no_secret_stays_untouched() {
        for line in [
            "",
            "./deploy.sh production --verbose",
            "a --password-file /run/x --token-file=/run/y",
            "a --no-auth b --auth-type basic c",
            "TOKEN=$TOKEN a --password=\"$PW\" --secret \"${S}\" b",
            "PASSWORD=$(cat /run/pw) a b",
            "PASSWORD=`cat /run/pw` a",
            "sh -c 'TOKEN=$T x'",
            "PWD=/srv a",
            "a --ask-become-pass site.yml --ask-pass b",
            "ssh-add --private-key ~/.ssh/id_rsa --signing-key=../k --credentials ./c.json",
            "SSH_AUTH_SOCK=/run/a a",
            "SSH_ASKPASS=/usr/bin/a COMPASS=x --bypass y --multipass z",
            "a --rotate-secrets prod --skip-auth prod --use-token b --with-auth c --require-password d",
            "a --secrets /srv/secrets/app.env --auth-socket x --secrets-dir y",
            "docker run -p 80:80 mysql",
            "sudo -p ask: mysql -p db",
            "curl -o u:x -H Accept:*/* -A u:y h",
            "kubectl set image auth-service:1.2",
            "a AUTH0_DOMAIN=x",
            "PASSWORD= a",
            "rsync h::mod/path user@h:/x https://h:8080/a@b https://h/a ssh://git@h/r",
            "a --max-tokens 5 --tokenizer=x --author=ann --key=v --keyword k",
            "tar -cf x | mysql -p db -P 3306",
            "echo it's a password: none",
            "the token is rotated; see https://h/x?y=1",
            "cut -d: -f1 /etc/passwd",
            "\\",
            "a=\"",
        ] {
            assert!(
                matches!(masked(line), Cow::Borrowed(_)),
                "{line} → {}",
                masked(line)
            );
            let words: Vec<&str> = line.split(' ').collect();
            if !line.contains(['$', '`']) {
                assert_eq!(shown(&words), words.join("|"));
            }
        }
    }

    #[test]
    fn a_command_that_prints_a_password_is_masked() {
        for (words, expected) in [
            (
                &["restic", "--password-command", "echo s3", "status"][..],
                "restic|--password-command|***|status",
            ),
            (
                &["restic", "--password-command=echo s3 'x", "status"],
                "restic|--password-command=***|status",
            ),
            (
                &[
                    "env",
                    "RESTIC_PASSWORD_COMMAND=echo s3",
                    "redlock",
                    "status",
                ],
                "env|RESTIC_PASSWORD_COMMAND=***|redlock|status",
            ),
            (
                &["docker", "run", "--env=RESTIC_PASSWORD_COMMAND=echo s3"],
                "docker|run|--env=RESTIC_PASSWORD_COMMAND=***",
            ),
            (
                &["env", "REDLOCK_HOOK=curl https://hooks/s3", "redlock"],
                "env|REDLOCK_HOOK=***|redlock",
            ),
            (
                &["sh", "-c", "restic --password-command 'echo s3' status"],
                "sh|-c|restic --password-command '***' status",
            ),
        ] {
            assert_eq!(shown(words), expected);
        }
        for (line, expected) in [
            (
                "restic --password-command 'echo s3' status",
                "restic --password-command '***' status",
            ),
            (
                "restic --password-command=\"echo s3; a\" status",
                "restic --password-command=*** status",
            ),
            (
                "RESTIC_PASSWORD_COMMAND='echo s3' restic check",
                "RESTIC_PASSWORD_COMMAND=*** restic check",
            ),
            (
                "REDLOCK_HOOK='curl https://hooks/s3' redlock run a",
                "REDLOCK_HOOK=*** redlock run a",
            ),
            (
                "export RESTIC_PASSWORD_COMMAND=echo\\ s3; a",
                "export RESTIC_PASSWORD_COMMAND=***",
            ),
            (
                "bash -c \"restic --password-command 'echo s3' b\"",
                "bash -c \"restic --password-command '***' b\"",
            ),
            (
                "restic --password-command \"$PRINT\" a --command b",
                "restic --password-command \"$PRINT\" a --command b",
            ),
        ] {
            assert_eq!(masked(line), expected);
        }
    }

    #[test]
    fn a_secret_is_known_by_its_form_wherever_it_is() {
        for (line, expected) in [
            ("a ghp_0123456789 b", "a *** b"),
            ("a --x=github_pat_0123456789 b", "a --x=*** b"),
            ("a hvs.CAESIJ0123 sk-ant-api03-0123 b", "a *** *** b"),
            ("curl h?x=glpat-0123456789&y", "curl h?x=***&y"),
            ("a eyJ01234567.eyJ0.x-_ b", "a *** b"),
            ("git clone https://X@h/r", "git clone https://***@h/r"),
            (
                "pip install git+https://X@h/r",
                "pip install git+https://***@h/r",
            ),
            ("curl https://X:@h", "curl https://***:@h"),
            (
                "curl https://hooks.slack.com/services/T0/B0/x -d y",
                "curl https://hooks.slack.com/services/*** -d y",
            ),
            (
                "curl 'https://h/b?sv=1&sig=a%2Bb%3D&c'",
                "curl 'https://h/b?sv=1&sig=***&c'",
            ),
            (
                "curl 'https://h/b?X-Amz-Signature=0af'",
                "curl 'https://h/b?X-Amz-Signature=***'",
            ),
            ("curl https://ghp_0123456789:x@h", "curl https://***@h"),
            ("redis-cli -u rediss://X@h", "redis-cli -u rediss://***@h"),
        ] {
            assert_eq!(masked(line), expected);
            let words: Vec<&str> = line.split(' ').collect();
            assert_eq!(shown(&words), expected.replace(' ', "|"));
        }
        for line in [
            "git clone ssh://git@h/r git@h:r https://h/@x https://$TOKEN@h",
            "psql postgres://ann@h/db",
            "ghp_x eyJ.x AKIA glpat-x a-ghp_01 sig=9 https://hooks.slack.com/docs hvs.x.y1234567890",
        ] {
            assert_eq!(masked(line), line);
        }
    }

    #[test]
    fn a_redirection_is_no_value() {
        for line in [
            "./deploy.sh --rotate-token > log",
            "a --token >log",
            "a --token 2>log",
            "a --token <log b",
            "a --token 2>&1 | b",
            "a --token > 'log' && b",
        ] {
            assert_eq!(masked(line), line);
        }
    }

    #[test]
    fn any_text_can_be_read_and_what_is_masked_once_stays_so() {
        // All texts of a few pieces, whatever sense they make.
        let pieces = [
            "--token", "=", " ", "'", "\"", "\\", "://", ":", "@", "é", "$", "-p", "mysql", "|",
        ];
        let mut texts = vec![String::new()];
        for _ in 0..4 {
            let longer = |text: &String| pieces.map(|piece| text.clone() + piece);
            texts = texts.iter().flat_map(longer).collect();
        }
        for text in texts {
            let once = masked(&text).into_owned();
            assert_eq!(
                masked(&once).matches(MASK).count(),
                once.matches(MASK).count(),
                "{text:?}"
            );
            let _ = shown(&text.split(' ').collect::<Vec<_>>());
        }
    }
}
