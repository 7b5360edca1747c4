//! The table of locks: a row for each holder and each waiter, with the columns that fit. Pure.

use std::time::Duration;

use crate::protocol::{Frozen, Hold, Holder, Inspected, Key, Renewal, Waiting, Who};
use crate::report::{
    Cell, Column, Line, Step, Style, Table, client_name, columns, command_and_reason, describe_job,
    escaped, format_duration, shorten, truncate,
};

const COLUMNS: [&str; 8] = [
    "NAME", "MODE", "WHO", "PID", "AGE", "LEASE", "ID", "COMMAND",
];
const NAME: usize = 0;
const MODE: usize = 1;
const WHO: usize = 2;
const PID: usize = 3;
const FOR: usize = 4;
const LEFT: usize = 5;
const ID: usize = 6;
const COMMAND: usize = 7;

/// What gives way on a terminal: what is least missed goes first, and a name is never cut.
const STAGES: [&[Step]; 8] = [
    &[Step::Cut(COMMAND, 20, usize::MAX)],
    &[Step::Hide(ID)],
    &[Step::Hide(PID)],
    &[Step::Cut(WHO, 24, 28)],
    &[Step::Hide(LEFT), Step::Brief(MODE)],
    &[Step::Cut(WHO, 16, 28)],
    &[Step::Brief(FOR)],
    &[Step::Cut(COMMAND, 8, usize::MAX)],
];

/// Between the parts of a line without a table.
const GAP: usize = 2;

/// What is said of a lease that should have been renewed.
pub const NOT_RENEWED: &str = "not renewed";

/// What is said of a lock, and of the client that has it next, while its grant isn't confirmed.
pub const GRANTED: &str = "granted";
pub const NOT_CONFIRMED: &str = "not confirmed yet";

/// A row: what is in each column, safe for a terminal, and how it looks.
#[derive(Clone, Debug)]
struct Row {
    cells: [String; 8],
    styles: [Style; 8],
    /// The mode where the column with what is left of the lease is hidden.
    mode_alone: Option<&'static str>,
    /// For how long, without what is usual.
    short_for: String,
    /// The link to the job, which has a line to itself on a terminal.
    link: Option<String>,
}

/// Draws some locks. `width`: that of the terminal, if there is one.
pub fn lines(locks: &[Inspected], width: Option<usize>) -> Vec<Line> {
    let rows: Vec<Row> = locks
        .iter()
        .flat_map(|lock| rows_of(lock, width.is_some()))
        .collect();
    let mut all = COLUMNS.map(Column::new);
    all[NAME] = Column::new(COLUMNS[NAME]).middle();
    all[WHO] = Column::new(COLUMNS[WHO]).middle();
    let mut table = Table::new(all.to_vec(), &rows, Row::cell);
    let mut lines = Vec::new();
    let fits = table.fit(width, &STAGES);
    if fits {
        lines.push(table.heading());
    }
    for row in &rows {
        match width {
            Some(width) if !fits => lines.extend(row.stacked(width)),
            _ => lines.push(table.line(|column, brief| row.cell(column, brief))),
        }
        if let Some(link) = &row.link {
            lines.push(Line::of(Style::Plain, format!("{:GAP$}{link}", "")));
        }
    }
    lines
}

impl Row {
    fn cell(&self, column: usize, brief: bool) -> Cell<'_> {
        let (style, text) = match (column, self.mode_alone) {
            (MODE, Some(mode)) if brief => (self.styles[LEFT], mode),
            (FOR, _) if brief => (self.styles[FOR], self.short_for.as_str()),
            _ => (self.styles[column], self.cells[column].as_str()),
        };
        (style, text.into())
    }

    /// The row in a few lines, for a terminal that has no room for a table. A name that doesn't fit beside the rest has
    /// a line of its own, which the terminal breaks.
    fn stacked(&self, width: usize) -> Vec<Line> {
        let [name, mode, who, _, _, left, _, command] = &self.cells;
        let taken = [name, mode, &self.short_for].map(|text| columns(text));
        let mut lines = Vec::new();
        let mut head = Line::of(Style::Bold, name);
        if taken.iter().sum::<usize>() + 2 * GAP > width {
            lines.push(std::mem::take(&mut head));
        }
        let head = head.and_spaces(GAP).and(self.styles[MODE], mode);
        lines.push(head.and_spaces(GAP).and(Style::Plain, &self.short_for));
        let room = width.saturating_sub(GAP);
        let mut add = |style, text: &str| {
            if !text.is_empty() {
                lines.push(Line::default().and_spaces(GAP).and(style, text));
            }
        };
        add(Style::Plain, &shorten(who, room));
        if self.mode_alone.is_some() {
            add(self.styles[LEFT], &truncate(left, room));
        }
        add(Style::Plain, &truncate(command, room));
        lines
    }
}

/// The rows of one lock: its holders, then its waiters.
fn rows_of(lock: &Inspected, on_terminal: bool) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    if let Some(by) = &lock.frozen {
        rows.push(frozen(lock, by, on_terminal));
    }
    match &lock.key {
        Key::Free if !rows.is_empty() => {}
        Key::Free => rows.push(Row::single(lock, "-", "free")),
        Key::NotALock(kind) => {
            rows.push(Row::single(
                lock,
                "-",
                &format!("not a lock: a {}", escaped(kind)),
            ));
        }
        Key::Held(_) => {
            let holders = lock.holders();
            rows.extend(holders.map(|hold| holding(lock, hold, on_terminal)));
            let grants = lock.grants();
            rows.extend(grants.map(|(hold, holder)| granted(lock, hold, holder, on_terminal)));
        }
    }
    for (position, waiting) in (1..).zip(&lock.waiters) {
        rows.push(self::waiting(lock, position, waiting, on_terminal));
    }
    rows
}

impl Row {
    /// A row without a holder or waiter.
    fn single(lock: &Inspected, mode: &str, what: &str) -> Self {
        let name = escaped(lock.name.as_str());
        let cells = [&name, mode, what, "-", "-", "-", "-", ""].map(str::to_owned);
        Self {
            cells,
            styles: [Style::Plain; 8],
            mode_alone: None,
            short_for: "-".into(),
            link: None,
        }
    }

    /// A row about a client, since a moment of the server's clock.
    fn about(lock: &Inspected, mode: String, who: &Who, since_ms: u64, on_terminal: bool) -> Self {
        let short_for = ago(lock, since_ms);
        let (command, link) = if on_terminal {
            (command_and_reason(who), who.url.as_deref())
        } else {
            (describe_job(who), None)
        };
        Self {
            cells: [
                escaped(lock.name.as_str()).into_owned(),
                mode,
                escaped(&client_name(who)).into_owned(),
                who.pid.to_string(),
                short_for.clone(),
                "-".into(),
                "-".into(),
                command,
            ],
            styles: [Style::Plain; 8],
            mode_alone: None,
            short_for,
            link: link.map(|link| escaped(link).into_owned()),
        }
    }
}

/// The client that froze the lock, until when, and why.
fn frozen(lock: &Inspected, by: &Frozen, on_terminal: bool) -> Row {
    let mut row = Row::about(lock, "frozen".into(), &by.who, by.since_ms, on_terminal);
    let left = Duration::from_millis(by.until_ms.saturating_sub(lock.now_ms));
    row.cells[LEFT] = format_duration(left);
    row.styles[MODE] = Style::Yellow;
    row
}

fn holding(lock: &Inspected, hold: &Hold, on_terminal: bool) -> Row {
    let left = hold.left.map_or("no expiry".into(), format_duration);
    let Some(holder) = &hold.holder else {
        let mut row = Row::single(lock, "exclusive", "another client");
        row.cells[LEFT] = left;
        row.cells[ID].clone_from(&hold.id);
        if hold.left.is_none() {
            row.cells[COMMAND] = "(no expiry; `redlock run --repair-ttl` gives it one)".into();
        }
        return row;
    };
    let mode = match holder.limit.as_slots() {
        _ if holder.kept.is_some() => "kept".to_owned(),
        _ if hold.stopping.is_some() => "stopping".to_owned(),
        Some(slots) => format!("slot {}/{slots}", holder.slot),
        None => holder.limit.mode().to_owned(),
    };
    let mut row = Row::about(lock, mode, &holder.who, holder.since_ms, on_terminal);
    row.cells[ID].clone_from(&hold.id);
    if hold.stopping.is_some() {
        row.styles[MODE] = Style::Yellow;
    }
    if let Some(usual) = lock.usual.filter(|_| holder.kept.is_none()) {
        row.cells[FOR] = format!("{} (usually {})", row.short_for, format_duration(usual));
    }
    row.cells[LEFT] = match hold.renewal() {
        Renewal::Overdue(_) => {
            row.mode_alone = Some(NOT_RENEWED);
            row.styles[LEFT] = Style::Red;
            format!("{left}, {NOT_RENEWED}")
        }
        Renewal::None => format!("expires in {left}"),
        Renewal::Ago(_) | Renewal::Unknown => left,
    };
    row
}

/// One that isn't a holder before it, or the replicas, have confirmed its grant.
fn granted(lock: &Inspected, hold: &Hold, holder: &Holder, on_terminal: bool) -> Row {
    let since = holder.waiting_since_ms();
    let mut row = Row::about(lock, GRANTED.into(), &holder.who, since, on_terminal);
    row.cells[ID].clone_from(&hold.id);
    row.cells[LEFT] = NOT_CONFIRMED.into();
    row.styles[MODE] = Style::Yellow;
    row
}

fn waiting(lock: &Inspected, position: usize, waiting: &Waiting, on_terminal: bool) -> Row {
    let waiter = &waiting.waiter;
    let mode = format!("waiting #{position}");
    let mut row = Row::about(lock, mode, &waiter.who, waiter.since_ms, on_terminal);
    row.cells[ID].clone_from(&waiting.id);
    row.styles[MODE] = Style::Yellow;
    row
}

/// How long it is since a moment of the server's clock.
fn ago(lock: &Inspected, since_ms: u64) -> String {
    format_duration(Duration::from_millis(lock.now_ms.saturating_sub(since_ms)))
}
