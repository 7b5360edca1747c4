//! The table of locks: a row for each holder and each waiter, with the columns that fit. Pure.

use std::time::Duration;

use crate::protocol::{Hold, Inspected, Key, Who};
use crate::report::{
    Narrowing, Style, Table, client_name, describe_job, escaped, format_duration, left_of_freeze,
    whole_seconds,
};

const COLUMNS: [&str; 7] = ["NAME", "MODE", "WHO", "PID", "AGE", "ID", "COMMAND"];
const MODE: usize = 1;

/// Steps that fit the table to a terminal: the least useful column goes first, and names are never cut.
const STEPS: [Narrowing; 10] = [
    Narrowing::Cut("COMMAND", 20, usize::MAX),
    Narrowing::Hide("ID"),
    Narrowing::Hide("PID"),
    Narrowing::Cut("WHO", 24, 28),
    Narrowing::Cut("WHO", 16, 28),
    Narrowing::Cut("COMMAND", 8, usize::MAX),
    Narrowing::Hide("COMMAND"),
    Narrowing::Cut("WHO", 8, 28),
    Narrowing::Hide("AGE"),
    Narrowing::Hide("WHO"),
];

/// Width from which a terminal shows modes and ages in full.
const WIDE: usize = 100;

/// Mode of a client with a granted lock, and the note about it.
pub const GRANTED: &str = "granted";
pub const NOT_CONFIRMED: &str = "not confirmed yet";

/// A row of cells, which are safe for a terminal.
#[derive(Clone, Debug, Default)]
struct Row {
    cells: [String; 7],
    style: Style,
    /// Link to the job; a terminal shows it on a separate line.
    link: Option<String>,
}

/// Draws locks for a terminal of this width, or for a file.
pub fn lines(locks: &[Inspected], width: Option<usize>) -> Vec<String> {
    let rows = locks.iter().flat_map(|lock| rows_of(lock, width));
    let rows: Vec<Row> = rows.collect();
    let mut table = Table::new(&COLUMNS, rows.iter().map(|row| &row.cells[..]));
    table.fit(width, &STEPS);
    let mut lines = vec![table.heading()];
    for row in &rows {
        lines.push(table.line(&row.cells, |column| match column {
            MODE => row.style,
            _ => Style::Plain,
        }));
        lines.extend(row.link.iter().map(|link| format!("  {link}")));
    }
    lines
}

impl Row {
    fn new(lock: &Inspected, [mode, who, pid, age, id, command]: [&str; 6]) -> Self {
        let name = escaped(lock.name.as_str());
        Self {
            cells: [&name, mode, who, pid, age, id, command].map(str::to_owned),
            ..Self::default()
        }
    }

    /// Returns a row about a client of this age. `note` adds facts that the other columns don't have.
    fn about(
        (lock, width): (&Inspected, Option<usize>),
        (style, mode): (Style, &str),
        (who, age, id): (&Who, &str, &str),
        note: &str,
    ) -> Self {
        let (client, pid) = (client_name(who), who.pid.to_string());
        let job = describe_job(who, note, width.is_none());
        let link = who.url.as_deref().filter(|_| width.is_some());
        Self {
            style,
            link: link.map(|link| escaped(link).into_owned()),
            ..Self::new(lock, [mode, &escaped(&client), &pid, age, id, &job])
        }
    }
}

/// Returns the rows of a lock: its freeze, its holders, then its waiters.
fn rows_of(lock: &Inspected, width: Option<usize>) -> Vec<Row> {
    let view = (lock, width);
    let age = |since_ms| format_duration(lock.since(since_ms));
    let mut rows: Vec<Row> = Vec::new();
    if let Some(frozen) = &lock.frozen {
        let left = left_of_freeze(frozen, lock.now_ms);
        let client = (&frozen.who, &*age(frozen.since_ms), "-");
        rows.push(Row::about(view, (Style::Yellow, "frozen"), client, &left));
    }
    match &lock.key {
        Key::Free if lock.frozen.is_some() => {}
        Key::Free => rows.push(Row::new(lock, ["-", "free", "-", "-", "-", ""])),
        Key::NotALock(kind) => {
            let what = format!("not a lock: a {}", escaped(kind));
            rows.push(Row::new(lock, ["-", &what, "-", "-", "-", ""]));
        }
        Key::Held(_) => rows.extend(lock.holders().map(|hold| holding(view, hold))),
    }
    rows.extend(lock.grants().map(|(hold, holder)| {
        let client = (&holder.who, &*age(holder.waiting_since_ms()), &*hold.id);
        Row::about(view, (Style::Yellow, GRANTED), client, NOT_CONFIRMED)
    }));
    rows.extend((1..).zip(&lock.waiters).map(|(position, waiting)| {
        let waiter = &waiting.waiter;
        let client = (&waiter.who, &*age(waiter.since_ms), &*waiting.id);
        let mode = format!("waiting #{position}");
        Row::about(view, (Style::Yellow, &mode), client, "")
    }));
    rows
}

fn holding(view: (&Inspected, Option<usize>), hold: &Hold) -> Row {
    let (lock, width) = view;
    let is_wide = width.is_none_or(|width| width >= WIDE);
    let note = match hold.left {
        None => "no expiry; REDLOCK_REPAIR_TTL=1 gives it one".into(),
        Some(left) if hold.holder.is_none() || hold.is_of_script() => {
            format!("expires in {}", format_duration(left))
        }
        Some(_) => String::new(),
    };
    let Some(holder) = &hold.holder else {
        let (who, note) = ("another client", format!("({note})"));
        return Row::new(lock, ["exclusive", who, "-", "-", &hold.id, &note]);
    };
    let (style, mode) = match (hold.overdue(), holder.limit.as_slots()) {
        _ if holder.kept.is_some() => (Style::Plain, "kept".into()),
        _ if hold.stopping.is_some() => (Style::Yellow, "stopping".into()),
        (Some(by), _) if is_wide => (Style::Red, overdue(by)),
        (Some(by), _) => (Style::Red, format!("{} overdue", whole_seconds(by))),
        (None, Some(slots)) => (Style::Plain, format!("slot {}/{slots}", holder.slot)),
        (None, None) => (Style::Plain, holder.limit.mode().into()),
    };
    let mut age = format_duration(lock.since(holder.since_ms));
    if let Some(usual) = lock.usual.filter(|_| is_wide && holder.kept.is_none()) {
        age = format!("{age} (usually {})", format_duration(usual));
    }
    let client = (&holder.who, &*age, &*hold.id);
    Row::about(view, (style, &mode), client, &note)
}

/// Returns `renewal 12s overdue`.
pub fn overdue(by: Duration) -> String {
    format!("renewal {} overdue", whole_seconds(by))
}
