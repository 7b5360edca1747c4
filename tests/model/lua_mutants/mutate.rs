//! Changes of one place in a Lua file, like typical mistakes of people. Each makes a mutant, named by the file, the line, the
//! kind and, if the line has several of a kind, a number.

/// A file with one change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mutant {
    /// Name: `lib/queue:42:drop`, or `lib/queue:42:drop#2` for the second of the line.
    pub name: String,
    /// The whole file.
    pub text: String,
    /// The line before the change.
    pub before: String,
    pub after: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Word,
    Number,
    Text,
    Sign,
    LineEnd,
}

/// A token of Lua, and its place.
#[derive(Clone, Copy, Debug)]
struct Token<'a> {
    kind: Kind,
    text: &'a str,
    at: usize,
}

impl Token<'_> {
    fn end(&self) -> usize {
        self.at + self.text.len()
    }

    fn is(&self, text: &str) -> bool {
        self.kind != Kind::Text && self.text == text
    }
}

/// Returns all mutants of a file.
pub fn mutants(file: &str, text: &str) -> Vec<Mutant> {
    let tokens = tokens(text);
    let mut changes = Vec::new();
    for at in 0..tokens.len() {
        swaps(&tokens, at, &mut changes);
        negations(text, &tokens, at, &mut changes);
        drops(text, &tokens, at, &mut changes);
    }
    let mut all: Vec<Mutant> = Vec::new();
    for (kind, from, to, new) in changes {
        let line = text[..from].matches('\n').count() + 1;
        let base = format!("{file}:{line}:{kind}");
        let alike = |mutant: &&Mutant| mutant.name.split('#').next() == Some(&base);
        let name = match all.iter().filter(alike).count() {
            0 => base,
            n => format!("{base}#{}", n + 1),
        };
        let mutated = format!("{}{new}{}", &text[..from], &text[to..]);
        let line_of = |text: &str| {
            text.lines()
                .nth(line - 1)
                .unwrap_or_default()
                .trim()
                .to_owned()
        };
        all.push(Mutant {
            name,
            before: line_of(text),
            after: line_of(&mutated),
            text: mutated,
        });
    }
    all
}

/// Kind of a change, start and end of the replaced text, and the new text.
type Change = (&'static str, usize, usize, String);

/// Adds the replacements of one sign, word or number by another.
fn swaps(tokens: &[Token], at: usize, changes: &mut Vec<Change>) {
    let token = tokens[at];
    let mut swap = |kind, new: &str| changes.push((kind, token.at, token.end(), new.into()));
    match (token.kind, token.text) {
        (Kind::Sign, "<") => swap("compare", "<="),
        (Kind::Sign, "<=") => swap("compare", "<"),
        (Kind::Sign, ">") => swap("compare", ">="),
        (Kind::Sign, ">=") => swap("compare", ">"),
        (Kind::Sign, "==") => swap("compare", "~="),
        (Kind::Sign, "~=") => swap("compare", "=="),
        (Kind::Sign, "+") => swap("sign", "-"),
        (Kind::Sign, "-") if is_value_end(tokens, at) => swap("sign", "+"),
        (Kind::Word, "and") => swap("logic", "or"),
        (Kind::Word, "or") => swap("logic", "and"),
        (Kind::Word, "true") => swap("truth", "false"),
        (Kind::Word, "false") => swap("truth", "true"),
        (Kind::Word, "min") => swap("bound", "max"),
        (Kind::Word, "max") => swap("bound", "min"),
        (Kind::Number, number) => {
            if let Ok(number) = number.parse::<u64>() {
                swap("number", &(number + 1).to_string());
            }
        }
        _ => {}
    }
}

/// Returns true if a value comes before, so that a minus sign subtracts.
fn is_value_end(tokens: &[Token], at: usize) -> bool {
    let Some(before) = at.checked_sub(1).map(|before| tokens[before]) else {
        return false;
    };
    match before.kind {
        Kind::Number | Kind::Text => true,
        Kind::Word => !["return", "and", "or", "not", "then", "in"].contains(&before.text),
        Kind::Sign => [")", "]", "}"].contains(&before.text),
        Kind::LineEnd => false,
    }
}

/// Adds the negations of a condition.
fn negations(text: &str, tokens: &[Token], at: usize, changes: &mut Vec<Change>) {
    let ends = match tokens[at] {
        token if token.is("if") || token.is("elseif") => "then",
        token if token.is("while") => "do",
        _ => return,
    };
    let end = tokens[at..].iter().position(|token| token.is(ends));
    let end = tokens[at + end.expect("a condition ends")];
    let (from, to) = (tokens[at].end(), end.at);
    let condition = text[from..to].trim();
    changes.push(("negate", from, to, format!(" not ({condition}) ")));
}

/// Adds the removal of a statement: a call, an assignment to an existing variable, a return, a break.
fn drops(text: &str, tokens: &[Token], at: usize, changes: &mut Vec<Change>) {
    if !begins_statement(tokens, at) {
        return;
    }
    let token = tokens[at];
    if token.is("break") {
        changes.push(("drop", token.at, token.end(), String::new()));
        return;
    }
    let end = if token.is("return") {
        statement_end(tokens, at + 1)
    } else if token.kind == Kind::Word && !KEYWORDS.contains(&token.text) {
        statement_end(tokens, at)
    } else {
        return;
    };
    // The only statement of a file or at a function's end is dropped like any other.
    let end = tokens[end - 1].end();
    let dropped = text[token.at..end].matches('\n').count();
    changes.push(("drop", token.at, end, "\n".repeat(dropped)));
}

const KEYWORDS: [&str; 21] = [
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local",
    "nil", "not", "or", "repeat", "return", "then", "true", "until", "while",
];

/// Returns true if a statement may begin here: after a complete line, or after a word that opens a block.
fn begins_statement(tokens: &[Token], at: usize) -> bool {
    let Some(before) = at.checked_sub(1).map(|before| tokens[before]) else {
        return true;
    };
    if ["then", "else", "do"].iter().any(|word| before.is(word)) {
        return true;
    }
    before.kind == Kind::LineEnd && depth(tokens, at) == 0 && !continues(tokens, at)
}

/// Returns the number of open brackets here.
fn depth(tokens: &[Token], at: usize) -> i32 {
    let change = |token: &Token| match token.text {
        _ if token.kind != Kind::Sign => 0,
        "(" | "{" | "[" => 1,
        ")" | "}" | "]" => -1,
        _ => 0,
    };
    // The function around a whole script opens a bracket that doesn't count.
    let since = tokens[..at].windows(4).rposition(|words| {
        words[0].is("(") && words[1].is("function") && words[2].is("(") && words[3].is(")")
    });
    let since = since.map_or(0, |since| since + 4);
    tokens[since..at].iter().map(change).sum()
}

/// Returns true if the line before ends within an expression.
fn continues(tokens: &[Token], at: usize) -> bool {
    let before = tokens[..at]
        .iter()
        .rev()
        .find(|token| token.kind != Kind::LineEnd);
    let is_open = |token: &Token| {
        [",", "=", "..", "+", "-", "*", "/"].contains(&token.text)
            || token.is("and")
            || token.is("or")
            || token.is("not")
            || token.is("return")
    };
    before.is_some_and(is_open) || tokens[at].is("and") || tokens[at].is("or")
}

/// Returns the index after the last token of the statement that continues here.
fn statement_end(tokens: &[Token], from: usize) -> usize {
    let (mut open, mut at) = (0, from);
    while let Some(token) = tokens.get(at) {
        match token.text {
            "(" | "{" | "[" if token.kind == Kind::Sign => open += 1,
            ")" | "}" | "]" if token.kind == Kind::Sign => open -= 1,
            "function" if token.kind == Kind::Word => return closing(tokens, at),
            "end" | "else" | "elseif" if token.kind == Kind::Word && open == 0 => return at,
            _ if token.kind == Kind::LineEnd && open == 0 => {
                let next = tokens.get(at + 1);
                let goes_on = next.is_some_and(|_| continues(tokens, at + 1));
                if !goes_on {
                    return at;
                }
            }
            _ => {}
        }
        at += 1;
    }
    at
}

/// Returns the end of the function that begins here, with its brackets.
fn closing(tokens: &[Token], at: usize) -> usize {
    let mut open = 0;
    for (n, token) in tokens.iter().enumerate().skip(at) {
        if ["function", "if", "for", "while"]
            .iter()
            .any(|word| token.is(word))
        {
            open += 1;
        } else if token.is("end") {
            open -= 1;
            if open == 0 {
                let rest = tokens[n + 1..].iter();
                let brackets = rest
                    .take_while(|token| token.is("(") || token.is(")"))
                    .count();
                return n + 1 + brackets;
            }
        }
    }
    tokens.len()
}

/// Returns the tokens of a file, without comments. Strings in these files have single quotes and no escapes.
fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let first = rest.chars().next().unwrap();
        let while_in = |is: fn(char) -> bool| rest.find(|c| !is(c)).unwrap_or(rest.len());
        let (kind, long) = if first == '\n' {
            (Some(Kind::LineEnd), 1)
        } else if first.is_whitespace() {
            (None, first.len_utf8())
        } else if rest.starts_with("--") {
            (None, rest.find('\n').unwrap_or(rest.len()))
        } else if first == '\'' {
            (
                Some(Kind::Text),
                rest[1..].find('\'').expect("a string ends") + 2,
            )
        } else if first.is_ascii_digit() {
            (Some(Kind::Number), while_in(|c| c.is_ascii_alphanumeric()))
        } else if first.is_alphabetic() || first == '_' {
            (
                Some(Kind::Word),
                while_in(|c| c.is_alphanumeric() || c == '_'),
            )
        } else {
            let signs = ["...", "..", "==", "~=", "<=", ">="];
            let sign = signs.iter().find(|sign| rest.starts_with(**sign));
            (
                Some(Kind::Sign),
                sign.map_or(first.len_utf8(), |sign| sign.len()),
            )
        };
        if let Some(kind) = kind {
            let text = &rest[..long];
            tokens.push(Token { kind, text, at });
        }
        at += long;
    }
    tokens
}
