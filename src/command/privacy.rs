//! What looks like a secret is masked before anything is stored for others to see. Pure.
//!
//! A secret is known by its name: `--password=x`, `--api-key x`, `DB_PASSWORD=x`, `"token": "x"`,
//! `Authorization: x`; it is the password of a URL; or the value of one of the few options that have no
//! telling name (`mysql -px`), whatever runs that program (`sudo mysql -px`). A line for a shell that prints a
//! secret (`--password-command x`) may have it, and is taken for one. What only refers to a secret is none: a
//! variable in a line for a shell, the name of a file. Some are known by their form wherever they are (`ghp_x`).

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
    command: Command,
}

impl Words {
    /// The next word without its secrets.
    pub(super) fn masked<'a>(&mut self, word: &'a str) -> Cow<'a, str> {
        match self.command.read(word) {
            Role::Line => return masked(word),
            Role::Value(value, at) => {
                if let Some(secret) = value.secret_in(&word[at..]) {
                    return without(word, Some(at + secret..word.len()));
                }
            }
            Role::Other => {}
        }
        let name = word.len() - word.trim_start_matches(is_name).len();
        // All of the value, whatever characters it has.
        if let Some(text) = word[name..]
            .strip_prefix('=')
            .filter(|text| !text.is_empty())
        {
            match secret_named(&word[..name]) {
                Some(value) if value.secret_in(text).is_some() => {
                    return without(word, Some(name + 1..word.len()));
                }
                Some(_) => return Cow::Borrowed(word),
                None => {}
            }
        }
        without(word, secrets_in(word, false))
    }
}

/// What is known of a command by those of its words that were read.
#[derive(Clone, Copy, Debug, Default)]
struct Command {
    /// What it runs; `None` until that comes.
    program: Option<&'static Program>,
    /// The short options with a value of the program before it, which will run it.
    prefix: Option<&'static str>,
    next: Next,
    /// What it prints is a secret.
    prints_secret: bool,
}

/// What the word before says of the next one, unless that is an option.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Next {
    #[default]
    Anything,
    Value(Sensitive),
    /// It is a line for a shell.
    Line,
    /// It is the value of another option.
    Passed,
}

/// A value that is a secret, or has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sensitive {
    Secret,
    /// A line for a shell that prints a secret, and may have it.
    Printing,
    /// A secret, unless it is the path of one.
    SecretOrPath,
    /// A user and a password, with a colon between them.
    UserAndPassword,
    /// A header of HTTP.
    Header,
}

/// What a word is by its place. A value begins at this byte of it.
enum Role {
    Other,
    Value(Sensitive, usize),
    Line,
}

impl Command {
    fn read(&mut self, word: &str) -> Role {
        let is_option = word.starts_with('-');
        match std::mem::take(&mut self.next) {
            Next::Value(value) if !is_option && !word.is_empty() => return Role::Value(value, 0),
            Next::Line if !is_option => return Role::Line,
            Next::Passed if !is_option => return Role::Other,
            Next::Line if word == "--" => {
                self.next = Next::Line;
                return Role::Other;
            }
            _ => {}
        }
        let is_skipped = word.contains('=') || self.prefix.is_some() && is_number(word);
        if word == "--" {
            // As in `kubectl exec pod -- mysql`.
            *self = Self::default();
        } else if is_option {
            return self.option(word);
        } else if let Some(program) = self.program {
            if program.has_login && word == "login" {
                self.program = Some(&LOGIN);
            }
            return program
                .words
                .map_or(Role::Other, |value| Role::Value(value, 0));
        } else if !is_skipped {
            self.begin(name_of(word));
        }
        Role::Other
    }

    /// The name of a program.
    fn begin(&mut self, name: &str) {
        let prefix = PREFIXES.iter().find(|(prefix, _)| *prefix == name);
        match prefix {
            Some((_, valued)) => self.prefix = Some(valued),
            None if self.prints_secret && PRINTING.names.contains(&name) => {
                self.program = Some(&PRINTING);
            }
            None => {
                let known = PROGRAMS.iter().find(|known| known.names.contains(&name));
                self.program = Some(known.unwrap_or(&OTHER));
            }
        }
    }

    fn option(&mut self, word: &str) -> Role {
        let is_long = word.starts_with("--");
        let prefix = self.prefix.filter(|_| self.program.is_none());
        let program = self.program.unwrap_or(&OTHER);
        let valued = prefix.unwrap_or(program.valued);
        let short = if is_long {
            None
        } else {
            short_option(valued, word)
        };
        if prefix.is_some() {
            let is_short = short.is_some_and(|(_, at)| at == word.len());
            if is_short || PREFIX_OPTIONS.contains(&word) {
                self.next = Next::Passed;
                return Role::Other;
            }
        }
        if let (Some((option, at)), None) = (short, prefix) {
            let value = program.values.iter().find(|(name, _)| *name == option);
            match value {
                Some((_, value)) if at < word.len() => return Role::Value(*value, at),
                // `mysql -p` asks for the password.
                Some((_, value)) if !program.only_attached => self.next = Next::Value(*value),
                None if program.names.is_empty() => {}
                _ => return Role::Other,
            }
        }
        if self.next != Next::Anything || !word.chars().all(is_name) {
            return Self::long_value(program, word);
        }
        self.next = match secret_named(word) {
            Some(value) => Next::Value(value),
            None if program.pairs.contains(&word) => Next::Value(Sensitive::UserAndPassword),
            None if prefix.is_none() && HEADERS.contains(&word) => Next::Value(Sensitive::Header),
            // As in `sh -c`, `bash -lc`.
            None if !is_long && prefix.is_none() && program.runs_lines && word.ends_with('c') => {
                Next::Line
            }
            None => Next::Anything,
        };
        Role::Other
    }

    /// The value of `--user=ann:x`.
    fn long_value(program: &Program, word: &str) -> Role {
        let Some((name, _)) = word.split_once('=') else {
            return Role::Other;
        };
        let at = name.len() + 1;
        if at == word.len() {
            Role::Other
        } else if program.pairs.contains(&name) {
            Role::Value(Sensitive::UserAndPassword, at)
        } else if HEADERS.contains(&name) {
            Role::Value(Sensitive::Header, at)
        } else {
            Role::Other
        }
    }
}

impl Sensitive {
    /// Where the secret begins in such a value, if there is one.
    fn secret_in(self, text: &str) -> Option<usize> {
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

/// The first of a group of short options that takes a value, and where that begins: `-su ann` has `u`.
fn short_option(valued: &str, word: &str) -> Option<(char, usize)> {
    let mut letters = word.char_indices().skip(1);
    let (at, option) = letters.find(|(_, letter)| valued.contains(*letter))?;
    Some((option, at + option.len_utf8()))
}

/// A number, a duration, or a variable in place of one, as in `timeout 60s`.
fn is_number(word: &str) -> bool {
    let is_digit = |c: char| c.is_ascii_digit() || c == '.';
    word.starts_with('$')
        || word.starts_with(is_digit)
            && word
                .trim_end_matches(['s', 'm', 'h', 'd'])
                .chars()
                .all(is_digit)
}

/// A program with options that have no telling name.
#[derive(Debug)]
struct Program {
    names: &'static [&'static str],
    /// Its short options that take a value.
    valued: &'static str,
    /// Those of them that take a secret.
    values: &'static [(char, Sensitive)],
    /// Whether a secret is only in the same word as its option.
    only_attached: bool,
    /// The long options with a user and a password.
    pairs: &'static [&'static str],
    /// What its words are that are no options.
    words: Option<Sensitive>,
    /// Whether it takes a password after the word `login`.
    has_login: bool,
    /// Whether an option that ends in `c` has a line for a shell.
    runs_lines: bool,
}

/// Any program. Of a group of options only the first is known to be one.
const OTHER: Program = Program {
    names: &[],
    valued: "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
    values: &[('H', Sensitive::Header)],
    only_attached: false,
    pairs: &[],
    words: None,
    has_login: false,
    runs_lines: true,
};

/// One that prints a secret.
const PRINTING: Program = Program {
    names: &["echo", "printf"],
    words: Some(Sensitive::Secret),
    ..OTHER
};

/// `docker login` and others.
const LOGIN: Program = Program {
    valued: "pu",
    values: &[('p', Sensitive::Secret)],
    ..OTHER
};

const PROGRAMS: [Program; 6] = [
    Program {
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
        values: &[('p', Sensitive::Secret)],
        only_attached: true,
        runs_lines: false,
        ..OTHER
    },
    Program {
        names: &["sshpass"],
        valued: "Pdfp",
        values: &[('p', Sensitive::Secret)],
        runs_lines: false,
        ..OTHER
    },
    Program {
        names: &["redis-cli"],
        valued: "DXadhinprstu",
        values: &[('a', Sensitive::Secret)],
        runs_lines: false,
        ..OTHER
    },
    Program {
        names: &["curl"],
        valued: "ACDEFHKPQTUXYbcdehmortuwxyz",
        values: &[
            ('H', Sensitive::Header),
            ('U', Sensitive::UserAndPassword),
            ('u', Sensitive::UserAndPassword),
        ],
        pairs: &["--user", "--proxy-user"],
        runs_lines: false,
        ..OTHER
    },
    Program {
        names: &["wget"],
        pairs: &["--user", "--proxy-user"],
        runs_lines: false,
        ..OTHER
    },
    Program {
        names: &[
            "docker", "podman", "buildah", "nerdctl", "skopeo", "helm", "oc", "az",
        ],
        has_login: true,
        ..OTHER
    },
];

/// Programs, and words of the shell, that run the command behind them; with their short options that
/// take a value.
const PREFIXES: [(&str, &str); 30] = [
    ("sudo", "CDRTUghprtu"),
    ("doas", "Cu"),
    ("env", "CSu"),
    ("nice", "n"),
    ("ionice", "Pcnpu"),
    ("chrt", "DPTp"),
    ("timeout", "ks"),
    ("time", "fo"),
    ("nohup", ""),
    ("exec", "a"),
    ("command", ""),
    ("builtin", ""),
    ("eval", ""),
    ("setsid", ""),
    ("stdbuf", "eio"),
    ("unbuffer", ""),
    ("xargs", "EILPadns"),
    ("caffeinate", "tw"),
    ("chronic", ""),
    ("systemd-inhibit", ""),
    ("if", ""),
    ("then", ""),
    ("elif", ""),
    ("else", ""),
    ("while", ""),
    ("until", ""),
    ("do", ""),
    ("!", ""),
    ("{", ""),
    ("coproc", ""),
];

/// Long options of these programs whose value is the next word.
const PREFIX_OPTIONS: [&str; 16] = [
    "--user",
    "--group",
    "--host",
    "--prompt",
    "--chdir",
    "--chroot",
    "--unset",
    "--adjustment",
    "--class",
    "--classdata",
    "--signal",
    "--kill-after",
    "--format",
    "--output",
    "--max-args",
    "--max-procs",
];

/// Options with a header of HTTP.
const HEADERS: [&str; 3] = ["-H", "--header", "--proxy-header"];

/// A program's name, without its directory.
fn name_of(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or_default()
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
        command: Command::default(),
        outer: Vec::new(),
        word_end: 0,
        is_redirected: false,
        prints_secret: false,
    };
    let mut secrets = Vec::new();
    while let Some(c) = scan.next() {
        let begins_word = shell && scan.begins_word(c);
        let secret = begins_word.then(|| scan.secret_in_word(c)).flatten();
        if let Some(secret) = secret {
            scan.at = secret.end;
            secrets.push(secret);
            continue;
        }
        if !is_name(c) {
            if shell {
                scan.separate(c);
            }
            scan.pass(c);
            continue;
        }
        let start = scan.at;
        if let Some(length) = secret_by_form(&text[start..]) {
            scan.at = start + length;
            secrets.push(start..scan.at);
            continue;
        }
        scan.at = text.len() - text[start..].trim_start_matches(is_name).len();
        if let Some(secret) = scan.secret_after(start..scan.at) {
            let is_reference = scan.is_reference(&secret);
            if is_reference && scan.is_output(&secret) {
                scan.at = secret.start;
                scan.prints_secret = true;
            } else if !secret.is_empty() {
                scan.at = secret.end;
                if !is_reference {
                    secrets.push(secret);
                }
            }
        }
    }
    secrets
}

/// Whether it is the number before a redirection, as in `2>log`.
fn is_descriptor(word: &str, rest: &str) -> bool {
    word.bytes().all(|b| b.is_ascii_digit()) && rest.starts_with(['<', '>'])
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
    /// The command that it is in.
    command: Command,
    /// Those around it, with what opened the substitution.
    outer: Vec<(char, Command)>,
    /// The end of the word that was read last.
    word_end: usize,
    /// The next word is the file of a redirection.
    is_redirected: bool,
    /// What the next substitution prints is a secret.
    prints_secret: bool,
}

impl Scan<'_> {
    /// Whether a word begins with this character.
    fn begins_word(&self, c: char) -> bool {
        let is_first = self.at == 0 || self.text[..self.at].ends_with(is_separator);
        is_first && self.at >= self.word_end && (self.is_quoted_secret(c) || !is_separator(c))
    }

    /// Whether it begins a secret in quotation marks, which are masked with it.
    fn is_quoted_secret(&self, c: char) -> bool {
        let next = self.command.next;
        let is_secret = matches!(
            next,
            Next::Value(Sensitive::Secret | Sensitive::Printing | Sensitive::SecretOrPath)
        );
        is_secret && matches!(c, '"' | '\'') && self.quote.is_none()
    }

    /// Reads the word that begins here: its secret, by what the words before it say.
    fn secret_in_word(&mut self, c: char) -> Option<Range<usize>> {
        let is_quoted = self.is_quoted_secret(c);
        let start = self.at;
        self.word_end = self.value_end(start);
        let word = &self.text[start..self.word_end];
        let is_file = std::mem::take(&mut self.is_redirected);
        if is_file || is_descriptor(word, &self.text[self.word_end..]) {
            return None;
        }
        let mut role = self.command.read(word);
        if matches!(role, Role::Line) {
            self.command = Command::default();
            role = self.command.read(word);
        }
        let Role::Value(value, at) = role else {
            return None;
        };
        let whole = if is_quoted {
            start..self.word_end
        } else {
            self.value_in(start + at)
        };
        let text = self.text[whole.clone()].trim_matches(|c| is_quoted && matches!(c, '"' | '\''));
        let secret = match value {
            Sensitive::Secret | Sensitive::Printing | Sensitive::SecretOrPath => {
                value.secret_in(text).map(|_| whole)?
            }
            _ => whole.start + value.secret_in(text)?..whole.end,
        };
        if self.is_reference(&secret) {
            self.prints_secret = self.is_output(&secret);
            return None;
        }
        Some(secret)
    }

    /// Comes to a character that may end a command, or begin one.
    fn separate(&mut self, c: char) {
        let rest = &self.text[self.at + c.len_utf8()..];
        let opened = self.outer.last().map(|(opened, _)| *opened);
        match (c, opened) {
            ('<' | '>', _) => {
                self.is_redirected = !rest.starts_with('(');
                self.command.next = Next::Anything;
            }
            (')', Some('(')) | ('`', Some('`')) => {
                self.command = self.outer.pop().map_or(self.command, |(_, outer)| outer);
            }
            ('(' | '`', _) => {
                self.outer.push((c, self.command));
                self.begin_command();
            }
            // As in `2>&1`, `&>log`.
            ('&', _) if rest.starts_with('>') || self.text[..self.at].ends_with('>') => {}
            (';' | '|' | '&' | '\n', _) => self.begin_command(),
            _ => {}
        }
    }

    fn begin_command(&mut self) {
        self.command = Command {
            prints_secret: std::mem::take(&mut self.prints_secret),
            ..Command::default()
        };
        self.is_redirected = false;
        self.word_end = 0;
    }

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
        let in_query = text[..name.start].ends_with(['?', '&']);
        let (name, rest) = (&text[name], &text[end..]);
        if let Some(rest) = rest.strip_prefix("://") {
            return self.login(name, text.len() - rest.len());
        }
        if rest.starts_with('=') {
            let start = end + 1;
            let named = match name {
                // Signed URLs of Azure and AWS.
                "sig" | "X-Amz-Signature" if in_query => Some(Sensitive::Secret),
                _ => secret_named(name),
            };
            // In a single word the spaces of a line are part of it.
            let value = if named == Some(Sensitive::Printing) && !self.shell {
                start..text.len()
            } else if self.begins_inner_quotation(start) {
                self.value_in(start)
            } else {
                start..self.value_end(start)
            };
            let text = self.text[value.clone()].trim_matches(['"', '\'']);
            // An empty value may be what a command prints.
            return named
                .filter(|named| text.is_empty() || named.secret_in(text).is_some())
                .map(|_| value);
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
            return secret_named(name).is_some().then(|| start..start + length);
        }
        None
    }

    /// The password in a URL whose authority begins here; or the user, where that may be a token.
    fn login(&self, scheme: &str, start: usize) -> Option<Range<usize>> {
        let url = &self.text[start..];
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
        let may_be_token =
            scheme == "git" || scheme.starts_with("http") || scheme.contains("redis");
        if may_be_token && password.is_empty() {
            return Some(start..start + user.len());
        }
        if secret_by_form(user).is_some() {
            return Some(start..start + at);
        }
        Some(start + user.len() + 1..start + at).filter(|_| !password.is_empty())
    }

    /// The value that begins here, without the quotation marks around it.
    fn value_in(&self, start: usize) -> Range<usize> {
        let text = self.text;
        let is_quote = |c: char| matches!(c, '"' | '\'');
        let start = if self.begins_inner_quotation(start) {
            start + 2
        } else if text[start..].starts_with(is_quote) {
            start + 1
        } else {
            start
        };
        let before = &text[..start];
        let closing = if before.ends_with("\\\"") {
            "\\\""
        } else if before.ends_with(is_quote) {
            &before[start - 1..]
        } else {
            return start..self.value_end(start);
        };
        let length = text[start..].find(closing);
        start..length.map_or_else(|| self.value_end(start), |length| start + length)
    }

    /// Whether a quotation begins here inside of another one, as in `bash -c "a \"b c\""`.
    fn begins_inner_quotation(&self, at: usize) -> bool {
        self.quote == Some('"') && self.text[at..].starts_with("\\\"")
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

    /// Whether a value only names a variable, or a command whose output it is.
    fn is_reference(&self, value: &Range<usize>) -> bool {
        if !self.shell || self.quote == Some('\'') && !self.is_nested() {
            return false;
        }
        let from = &self.text[value.start..];
        let value = &self.text[value.clone()];
        let value = value.strip_prefix('"').unwrap_or(value);
        let value = value.strip_suffix('"').unwrap_or(value);
        let Some(name) = value.strip_prefix('$') else {
            return value.starts_with('`') || value.is_empty() && from.starts_with('`');
        };
        let braced = name
            .strip_prefix('{')
            .and_then(|name| name.strip_suffix('}'));
        let is_name = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        name.is_empty() || name.starts_with('(') || is_name(braced.unwrap_or(name))
    }

    /// Whether a value is what a command prints.
    fn is_output(&self, value: &Range<usize>) -> bool {
        let value = self.text[value.start..].trim_start_matches('"');
        self.shell && (value.starts_with("$(") || value.starts_with('`'))
    }

    /// Whether the quotation is a line for another shell, which replaces variables.
    fn is_nested(&self) -> bool {
        let before = &self.text[..self.at];
        let open = before.rfind('\'').unwrap_or(0);
        before[..open].trim_end().ends_with('c')
    }
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
    fn a_command_is_read_behind_the_programs_that_run_it_too() {
        for (line, expected) in [
            ("sudo mysql -pX db", "sudo mysql -p*** db"),
            (
                "sudo -Eu postgres mysql -pX",
                "sudo -Eu postgres mysql -p***",
            ),
            (
                "sudo --user ann -H mysql -pX",
                "sudo --user ann -H mysql -p***",
            ),
            ("env A=1 B=2 mysql -pX", "env A=1 B=2 mysql -p***"),
            ("nice -n 10 mysql -pX", "nice -n 10 mysql -p***"),
            (
                "ionice -c 2 -n7 nice mysql -pX",
                "ionice -c 2 -n7 nice mysql -p***",
            ),
            ("timeout 60 curl -u ann:X h", "timeout 60 curl -u ann:*** h"),
            (
                "timeout -k 5s --signal KILL 1.5m curl -u ann:X h",
                "timeout -k 5s --signal KILL 1.5m curl -u ann:*** h",
            ),
            ("time nohup redis-cli -a X", "time nohup redis-cli -a ***"),
            ("exec sshpass -p X ssh h", "exec sshpass -p *** ssh h"),
            ("sudo sshpass -p X", "sudo sshpass -p ***"),
            (
                "kubectl exec pod -- mysql -pX",
                "kubectl exec pod -- mysql -p***",
            ),
            ("xargs -n 1 curl -u ann:X", "xargs -n 1 curl -u ann:***"),
            ("curl -su ann:X h", "curl -su ann:*** h"),
            ("curl -fsSu ann:X h", "curl -fsSu ann:*** h"),
            ("curl -fsSuann:X h", "curl -fsSuann:*** h"),
            ("curl -oux:y --user=ann:X h", "curl -oux:y --user=ann:*** h"),
            ("redis-cli -c -aX", "redis-cli -c -a***"),
            ("redis-cli -c -a X get k", "redis-cli -c -a *** get k"),
            ("curl -H X-Api-Key:X h", "curl -H X-Api-Key:*** h"),
            ("curl -sH token:X h", "curl -sH token:*** h"),
            (
                "curl --header X-Api-Key:X h",
                "curl --header X-Api-Key:*** h",
            ),
            (
                "wget --header=X-Api-Key:X h",
                "wget --header=X-Api-Key:*** h",
            ),
            ("SSHPASS=X sshpass -e ssh h", "SSHPASS=*** sshpass -e ssh h"),
            ("DBPASS=X FTPPASS=Y a", "DBPASS=*** FTPPASS=*** a"),
            (
                "a --userpass=X --userpass Y",
                "a --userpass=*** --userpass ***",
            ),
            (
                "PASSWORD1=X a --password2=Y --api-key3 Z",
                "PASSWORD1=*** a --password2=*** --api-key3 ***",
            ),
            ("docker login -u ann -p X h", "docker login -u ann -p *** h"),
            (
                "sudo docker --debug login -pX h",
                "sudo docker --debug login -p*** h",
            ),
            (
                "a --client-secret /wJalrXUtnFEMI7K7MDENG5bPxRfiCY b",
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
                &["curl", "-H", "authorization:Bearer X", "h"],
                "curl|-H|authorization:***|h",
            ),
            (
                &["env", "DB=1", "curl", "-u", "a:s 3"],
                "env|DB=1|curl|-u|a:***",
            ),
            (
                &["sudo", "bash", "-c", "mysql -pX"],
                "sudo|bash|-c|mysql -p***",
            ),
            (&["bash", "-c", "--", "mysql -pX"], "bash|-c|--|mysql -p***"),
            (
                &["bash", "-ec", "bash -c \"mysql -pX\""],
                "bash|-ec|bash -c \"mysql -p***\"",
            ),
        ] {
            assert_eq!(shown(words), expected);
        }
    }

    #[test]
    fn a_line_for_a_shell_is_read_as_the_shell_does() {
        for (line, expected) in [
            (
                "if mysql -pX; then mysql -pY; fi",
                "if mysql -p***; then mysql -p***; fi",
            ),
            ("if ! mysql -pX; then :; fi", "if ! mysql -p***; then :; fi"),
            ("{ mysql -pX; }", "{ mysql -p***; }"),
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
            ("A=\"b c\" mysql -p'X Y' z", "A=\"b c\" mysql -p'***' z"),
            ("mysql -h $(hostname) -pX", "mysql -h $(hostname) -p***"),
            ("mysql -h `hostname` -pX", "mysql -h `hostname` -p***"),
            ("mysql 2>&1 -pX", "mysql 2>&1 -p***"),
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
                "bash -c \"a --password=\\\"***\\\" b\"",
            ),
            (
                "a --private-key '/srv/a b' c",
                "a --private-key '/srv/a b' c",
            ),
            ("TOKEN=$(echo X) a b", "TOKEN=$(echo ***) a b"),
            (
                "TOKEN=\"$(echo -n X | base64 -d)\" a",
                "TOKEN=\"$(echo -n *** | base64 -d)\" a",
            ),
            ("TOKEN=\"`echo X`\" a", "TOKEN=\"`echo ***`\" a"),
            ("TOKEN=`echo 'X Y'` a", "TOKEN=`echo '***'` a"),
            (
                "a --token \"$(printf %s X)\" b",
                "a --token \"$(printf *** ***)\" b",
            ),
            ("a --token $(echo X) b", "a --token $(echo ***) b"),
        ] {
            assert_eq!(masked(line), expected);
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
            "a --ask-become-pass site.yml --ask-pass b",
            "ssh-add --private-key ~/.ssh/id_rsa --signing-key=../k --credentials ./c.json",
            "SSH_AUTH_SOCK=/run/a a",
            "SSH_ASKPASS=/usr/bin/a COMPASS=x --bypass y --multipass z",
            "a --rotate-secrets prod --skip-auth prod --use-token b --with-auth c --require-password d",
            "a --secrets /srv/secrets/app.env --auth-socket x --secrets-dir y",
            "docker run -p 80:80 mysql",
            "docker run --name mysql -p3306:3306 login",
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
                &["redlock", "--password-command", "echo s3", "status"][..],
                "redlock|--password-command|***|status",
            ),
            (
                &["redlock", "--password-command=echo s3 'x", "status"],
                "redlock|--password-command=***|status",
            ),
            (
                &[
                    "env",
                    "REDLOCK_PASSWORD_COMMAND=echo s3",
                    "redlock",
                    "status",
                ],
                "env|REDLOCK_PASSWORD_COMMAND=***|redlock|status",
            ),
            (
                &["docker", "run", "--env=REDLOCK_PASSWORD_COMMAND=echo s3"],
                "docker|run|--env=REDLOCK_PASSWORD_COMMAND=***",
            ),
            (
                &["sh", "-c", "redlock --password-command 'echo s3' status"],
                "sh|-c|redlock --password-command *** status",
            ),
        ] {
            assert_eq!(shown(words), expected);
        }
        for (line, expected) in [
            (
                "redlock --password-command 'echo s3' status",
                "redlock --password-command *** status",
            ),
            (
                "redlock --password-command=\"echo s3; a\" status",
                "redlock --password-command=*** status",
            ),
            (
                "REDLOCK_PASSWORD_COMMAND='echo s3' redlock status",
                "REDLOCK_PASSWORD_COMMAND=*** redlock status",
            ),
            (
                "export REDLOCK_PASSWORD_COMMAND=echo\\ s3; a",
                "export REDLOCK_PASSWORD_COMMAND=***; a",
            ),
            (
                "bash -c \"redlock --password-command 'echo s3' b\"",
                "bash -c \"redlock --password-command '***' b\"",
            ),
            (
                "redlock --password-command \"$PRINT\" a --command b",
                "redlock --password-command \"$PRINT\" a --command b",
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
