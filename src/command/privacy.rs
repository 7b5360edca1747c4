//! What looks like a secret is masked before anything is stored for others to see. Pure.
//!
//! A secret is known by its name: `--password=x`, `--api-key x`, `DB_PASSWORD=x`, `"token": "x"`,
//! `Authorization: x`; it is the password of a URL; or the value of one of the few options that have no
//! telling name (`mysql -px`). What only refers to a secret is none: a variable in a line for a shell, the
//! name of a file.

use std::borrow::Cow;
use std::ops::Range;

/// What is shown in place of a secret.
const MASK: &str = "***";

/// A text, or a line for a shell, without its secrets.
pub(super) fn masked(text: &str) -> Cow<'_, str> {
    without(text, secrets_in(text, true))
}

/// The words of a command line, one after the other.
#[derive(Debug, Default)]
pub(super) struct Words {
    program: Option<String>,
    next: Next,
}

/// What the word before says of the next one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Next {
    #[default]
    Anything,
    /// It is the value of an option with a telling name, unless it is another option.
    Secret,
    /// It is a user and a password, with a colon between them.
    UserAndPassword,
    /// It is a line for a shell.
    ShellLine,
}

impl Words {
    /// The next word without its secrets.
    pub(super) fn masked<'a>(&mut self, word: &'a str) -> Cow<'a, str> {
        let program = self.program.get_or_insert_with(|| name_of(word).into());
        let is_option = word.starts_with('-');
        match std::mem::take(&mut self.next) {
            Next::Secret if !is_option && !word.is_empty() => return MASK.into(),
            Next::UserAndPassword if !is_option => return after_colon(word, 0),
            Next::ShellLine => return masked(word),
            Next::Secret | Next::UserAndPassword | Next::Anything => {}
        }
        let name = word.len() - word.trim_start_matches(is_name).len();
        if name == word.len() {
            self.next = next_after(program, word);
        }
        match short_option(program, word) {
            Some(Short::Attached(at)) => return without(word, Some(at..word.len())),
            Some(Short::UserAndPassword(at)) => return after_colon(word, at),
            None => {}
        }
        // All of the value, whatever characters it has.
        if word[name..].starts_with('=') && word.len() > name + 1 && is_secret(&word[..name]) {
            return without(word, Some(name + 1..word.len()));
        }
        without(word, secrets_in(word, false))
    }
}

/// What follows a word that is an option by its look.
fn next_after(program: &str, word: &str) -> Next {
    if !word.starts_with('-') {
        return Next::Anything;
    }
    match (program, word) {
        ("sshpass", "-p") | ("redis-cli", "-a" | "--pass") => Next::Secret,
        ("curl" | "wget", "-u" | "--user" | "--proxy-user" | "-U") => Next::UserAndPassword,
        _ if is_secret(word) => Next::Secret,
        // As in `sh -c`, `bash -lc`.
        _ if !word.starts_with("--") && word.ends_with('c') => Next::ShellLine,
        _ => Next::Anything,
    }
}

/// The value of an option without a telling name, in the same word; it begins at this byte.
enum Short {
    Attached(usize),
    UserAndPassword(usize),
}

fn short_option(program: &str, word: &str) -> Option<Short> {
    let has_more = |start: &str| word.len() > start.len() && word.starts_with(start);
    match program {
        "mysql" | "mysqldump" | "mysqladmin" | "mysqlimport" | "mariadb" | "mariadb-dump"
        | "mariadb-admin" | "sshpass"
            if has_more("-p") && !word.starts_with("-p=") =>
        {
            Some(Short::Attached(2))
        }
        "curl" | "wget" => ["--user=", "--proxy-user=", "-u"]
            .into_iter()
            .find(|start| has_more(start))
            .map(|start| Short::UserAndPassword(start.len())),
        _ => None,
    }
}

/// A program's name, without its directory.
fn name_of(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or_default()
}

/// A word whose part from `start` on is a user and, after a colon, a password.
fn after_colon(word: &str, start: usize) -> Cow<'_, str> {
    let colon = word[start..].find(':').map(|at| start + at + 1);
    match colon {
        Some(at) if at < word.len() => without(word, Some(at..word.len())),
        _ => Cow::Borrowed(word),
    }
}

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

/// Finds the secrets in a text. In one for a `shell`, variables stand for their values, and commands
/// begin.
fn secrets_in(text: &str, shell: bool) -> Vec<Range<usize>> {
    let mut scan = Scan {
        text,
        shell,
        at: 0,
        quote: None,
    };
    let mut secrets = Vec::new();
    let mut program = "";
    let mut words = shell.then_some(Next::Anything);
    let mut begins_command = shell;
    while let Some(c) = scan.next() {
        let begins_word = scan.at == 0 || text[..scan.at].ends_with(is_separator);
        let is_quoted =
            words == Some(Next::Secret) && matches!(c, '"' | '\'') && scan.quote.is_none();
        let is_word = begins_word && (is_quoted || !is_separator(c));
        if let Some(next) = words.as_mut().filter(|_| is_word) {
            let word = &text[scan.at..scan.word_end(scan.at)];
            let is_option = word.starts_with('-');
            let secret = match std::mem::take(next) {
                Next::Secret if !is_option => Some(scan.at..scan.value_end(scan.at)),
                Next::UserAndPassword if !is_option => scan.after_colon(scan.at),
                _ => match short_option(program, word) {
                    Some(Short::Attached(at)) => Some(scan.at + at..scan.value_end(scan.at + at)),
                    Some(Short::UserAndPassword(at)) => scan.after_colon(scan.at + at),
                    None => None,
                },
            };
            if let Some(secret) = secret.filter(|secret| !scan.is_reference(secret)) {
                scan.at = secret.end;
                secrets.push(secret);
                continue;
            }
            if begins_command && !word.contains('=') {
                program = name_of(word);
                begins_command = false;
            }
            if word.chars().all(is_name) {
                *next = match next_after(program, word) {
                    // It is read as the rest of this one.
                    Next::ShellLine => Next::Anything,
                    next => next,
                };
            }
        }
        if is_name(c) {
            let start = scan.at;
            scan.at = start
                + text[start..]
                    .find(|c| !is_name(c))
                    .unwrap_or(text.len() - start);
            let secret = scan.secret_after(start..scan.at);
            if let Some(secret) = secret.filter(|secret| !secret.is_empty()) {
                scan.at = secret.end;
                if !scan.is_reference(&secret) {
                    secrets.push(secret);
                }
            }
            continue;
        }
        if shell && matches!(c, ';' | '|' | '&' | '(' | '\n' | '`') {
            begins_command = true;
            words = Some(Next::Anything);
        }
        scan.pass(c);
    }
    secrets
}

/// Between the words of a line for a shell, or before the first character of one.
fn is_separator(c: char) -> bool {
    c.is_whitespace()
        || matches!(
            c,
            ';' | '|' | '&' | '(' | ')' | '<' | '>' | '`' | '\'' | '"'
        )
}

/// A text, and how far it was read.
struct Scan<'a> {
    text: &'a str,
    shell: bool,
    at: usize,
    /// The quotation that it has come to.
    quote: Option<char>,
}

impl Scan<'_> {
    fn next(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    /// Goes on behind a character that is no part of a name.
    fn pass(&mut self, c: char) {
        self.at += c.len_utf8();
        match (c, self.quote) {
            ('\\', _) => self.at += self.next().map_or(0, char::len_utf8),
            ('"' | '\'', None) => self.quote = Some(c),
            ('"' | '\'', Some(quote)) if quote == c => self.quote = None,
            _ => {}
        }
    }

    /// The secret that a name introduces, if it does.
    fn secret_after(&mut self, name: Range<usize>) -> Option<Range<usize>> {
        let (text, end) = (self.text, name.end);
        let (name, rest) = (&text[name], &text[end..]);
        if let Some(rest) = rest.strip_prefix("://") {
            return self.password(text.len() - rest.len());
        }
        if rest.starts_with('=') {
            let start = end + 1;
            return is_secret(name).then(|| start..self.value_end(start));
        }
        if let Some(rest) = rest.strip_prefix(": ") {
            let start = text.len() - rest.trim_start().len();
            return is_header(name).then(|| start..self.quote_end(start));
        }
        // A field of a JSON object.
        for quote in ["\\\"", "\"", "'"] {
            let Some(rest) = rest.strip_prefix(quote) else {
                continue;
            };
            let value = rest.trim_start().strip_prefix(':')?.trim_start();
            let value = value.strip_prefix(quote)?;
            let start = text.len() - value.len();
            let length = value.find(quote).unwrap_or(value.len());
            return is_secret(name).then(|| start..start + length);
        }
        None
    }

    /// The password in a URL whose authority begins here.
    fn password(&self, start: usize) -> Option<Range<usize>> {
        let url = &self.text[start..];
        let ends = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '>' | '`');
        let url = &url[..url.find(ends).unwrap_or(url.len())];
        let path = url.find(['/', '?', '#']).unwrap_or(url.len());
        // A password that isn't encoded may contain these. A number after the colon is a port.
        let at = match (url[..path].rfind('@'), url[..path].find(':')) {
            (Some(at), _) => at,
            (None, Some(colon)) if !url[colon + 1..path].bytes().all(|b| b.is_ascii_digit()) => {
                url.rfind('@')?
            }
            _ => return None,
        };
        let colon = url[..at].find(':')? + 1;
        Some(start + colon..start + at)
    }

    /// What follows the colon in the word from `start` on.
    fn after_colon(&self, start: usize) -> Option<Range<usize>> {
        let end = self.value_end(start);
        let colon = self.text[start..end].find(':')?;
        Some(start + colon + 1..end)
    }

    /// The end of the value that begins here: of its last part without a space, or in quotation marks.
    fn value_end(&self, start: usize) -> usize {
        let mut quote: Option<char> = None;
        let mut characters = self.text[start..].char_indices();
        while let Some((at, c)) = characters.next() {
            match (c, quote) {
                ('\\', _) => drop(characters.next()),
                (c, None) if Some(c) == self.quote => return start + at,
                ('"' | '\'', None) => quote = Some(c),
                (c, Some(open)) if c == open => quote = None,
                (c, None)
                    if c.is_whitespace()
                        || matches!(c, ';' | '|' | '&' | '(' | ')' | '<' | '>' | '`') =>
                {
                    return start + at;
                }
                _ => {}
            }
        }
        self.text.len()
    }

    /// The end of the quotation that this is in, or of the line.
    fn quote_end(&self, start: usize) -> usize {
        let ends = |c: char| c == '\n' || Some(c) == self.quote;
        let length = self.text[start..].find(ends);
        length.map_or(self.text.len(), |length| start + length)
    }

    /// The end of the word that begins here.
    fn word_end(&self, start: usize) -> usize {
        let length = self.text[start..].find(is_separator);
        length.map_or(self.text.len(), |length| start + length)
    }

    /// Whether a value only names a variable, or a command whose output it is.
    fn is_reference(&self, value: &Range<usize>) -> bool {
        if !self.shell || self.quote == Some('\'') && !self.is_nested() {
            return false;
        }
        let value = &self.text[value.clone()];
        let value = value.strip_prefix('"').unwrap_or(value);
        let value = value.strip_suffix('"').unwrap_or(value);
        let Some(name) = value.strip_prefix('$') else {
            return value.is_empty() && self.text[self.at..].starts_with('`');
        };
        let braced = name
            .strip_prefix('{')
            .and_then(|name| name.strip_suffix('}'));
        let is_name = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        name.is_empty() || name.starts_with('(') || is_name(braced.unwrap_or(name))
    }

    /// Whether the quotation is a line for another shell, which replaces variables.
    fn is_nested(&self) -> bool {
        let before = &self.text[..self.at];
        let open = before.rfind('\'').unwrap_or(0);
        before[..open].trim_end().ends_with('c')
    }
}

/// Whether a name is that of a secret: of an option, a variable, a field.
fn is_secret(name: &str) -> bool {
    if matches!(name, "PWD" | "OLDPWD") {
        return false;
    }
    let name = name.trim_start_matches('-');
    let mut parts = Vec::new();
    for part in name.split(['-', '_']) {
        // As in authToken.
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
    let is = |part: &str, all: &[&str]| all.iter().any(|one| part.eq_ignore_ascii_case(one));
    let ends = |part: &str, all: &[&str]| {
        let tail = |one: &&str| part.len().checked_sub(one.len());
        let mut tails = all
            .iter()
            .filter_map(|one| Some((one, part.get(tail(one)?..)?)));
        tails.any(|(one, tail)| tail.eq_ignore_ascii_case(one))
    };
    let last = parts.last().copied().unwrap_or_default();
    if is(last, &ABOUT) || parts.first().is_some_and(|first| is(first, &["no"])) {
        return false;
    }
    let keys = parts
        .windows(2)
        .any(|two| is(two[1], &["key", "keys"]) && is(two[0], &KEYS));
    keys || parts
        .iter()
        .any(|part| is(part, &WHOLE) || ends(part, &ENDINGS))
}

/// The ends of words that name secrets, as in PGPASSWORD.
const ENDINGS: [&str; 10] = [
    "password",
    "passwords",
    "passwd",
    "pwd",
    "passphrase",
    "secret",
    "secrets",
    "token",
    "credential",
    "credentials",
];

/// Words that name secrets.
const WHOLE: [&str; 7] = [
    "auth",
    "authorization",
    "apikey",
    "accesskey",
    "secretkey",
    "privatekey",
    "pass",
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

/// The last words of names that only say something about a secret.
const ABOUT: [&str; 31] = [
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
    is_plain || (name.contains('-') && !name.starts_with('-') && is_secret(name))
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
    fn what_looks_like_a_secret_in_a_line_for_a_shell_is_masked() {
        for (line, expected) in [
            ("PGPASSWORD=s3cret psql -l", "PGPASSWORD=*** psql -l"),
            ("a --password='s3 cret' b", "a --password=*** b"),
            ("a --password \"s3 cret\" b", "a --password *** b"),
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
