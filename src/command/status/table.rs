//! The table of locks: a row for each holder and each waiter, with the columns that fit. Pure.

use std::borrow::Cow;
use std::time::Duration;

use super::picture::{Kind, Picture};
use crate::lock::{Frozen, Hold, Inspected, Key, Renewal, Restarted, Waiting, Who};
use crate::report::{
    Line, Style, columns, command_and_reason, describe_job, escaped, format_duration, held_back,
    padded, shorten, truncate,
};

const COLUMNS: [&str; 8] = [
    "NAME", "MODE", "WHO", "PID", "FOR", "TTL LEFT", "ID", "COMMAND",
];
const NAME: usize = 0;
const MODE: usize = 1;
const WHO: usize = 2;
const PID: usize = 3;
const FOR: usize = 4;
const LEFT: usize = 5;
const ID: usize = 6;
const COMMAND: usize = 7;

/// Between two columns.
const GAP: usize = 2;

/// The least of a command that is shown beside the other columns.
const LEAST_COMMAND: usize = 20;

/// The most of a user and host that has been cut.
const WIDE_WHO: usize = 28;

/// What is said of a lease that should have been renewed.
pub const NOT_RENEWED: &str = "not renewed";

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

/// Which columns are shown, and how wide.
#[derive(Clone, Debug)]
struct Layout {
    shown: [bool; 8],
    /// The most columns for a name and for a user and host.
    name: usize,
    who: usize,
    usual: bool,
}

/// A picture of some locks. `width`: that of the terminal, if there is one.
pub fn picture(locks: &[Inspected], width: Option<usize>) -> Picture {
    let rows: Vec<Row> = locks
        .iter()
        .flat_map(|lock| rows_of(lock, width.is_some()))
        .collect();
    match width {
        None => whole(&rows),
        Some(width) => match Layout::fitting(&rows, width) {
            Some(layout) => layout.picture(&rows, width),
            None => stacked(&rows, width),
        },
    }
}

/// Nothing is cut.
fn whole(rows: &[Row]) -> Picture {
    let layout = Layout::whole();
    layout.picture(rows, usize::MAX)
}

/// Without a table, for a terminal that has no room for one: each row in a few lines.
fn stacked(rows: &[Row], width: usize) -> Picture {
    let mut picture = Picture::default();
    for row in rows {
        let [name, mode, who, _, _, left, _, command] = &row.cells;
        let rest = columns(mode) + columns(&row.short_for) + 2 * GAP;
        let name = shorten(name, width.saturating_sub(rest).max(8));
        let head = Line::of(Style::Bold, padded(&name, columns(&name) + GAP))
            .and(row.styles[MODE], &padded(mode, columns(mode) + GAP))
            .and(Style::Plain, &row.short_for);
        let mut lines = vec![head];
        let room = width.saturating_sub(GAP);
        let mut add = |style, text: &str| {
            if !text.is_empty() {
                lines.push(Line::of(style, format!("{:GAP$}{text}", "")));
            }
        };
        add(Style::Plain, &shorten(who, room));
        if row.mode_alone.is_some() {
            add(row.styles[LEFT], &truncate(left, room));
        }
        add(Style::Plain, &truncate(command, room));
        if let Some(link) = &row.link {
            add(Style::Plain, link);
        }
        picture.add(row.kind(), lines);
    }
    picture
}

impl Row {
    /// A row, by what of it doesn't change with time alone.
    fn kind(&self) -> Kind {
        let cells = [NAME, MODE, WHO, PID, ID, COMMAND].map(|column| self.cells[column].as_str());
        Kind::row(&[&cells[..], &[self.mode_alone.unwrap_or_default()]].concat())
    }

    /// The text of a column.
    fn cell(&self, column: usize, layout: &Layout) -> Cow<'_, str> {
        let cell = self.cells[column].as_str();
        match column {
            NAME => shorten(cell, layout.name),
            WHO => shorten(cell, layout.who),
            MODE if !layout.shown[LEFT] => self.mode_alone.unwrap_or(cell).into(),
            FOR if !layout.usual => self.short_for.as_str().into(),
            _ => cell.into(),
        }
    }

    fn style(&self, column: usize, layout: &Layout) -> Style {
        if column == MODE && !layout.shown[LEFT] && self.mode_alone.is_some() {
            return self.styles[LEFT];
        }
        self.styles[column]
    }
}

impl Layout {
    fn whole() -> Self {
        Self {
            shown: [true; 8],
            name: usize::MAX,
            who: usize::MAX,
            usual: true,
        }
    }

    /// The most that fits: what is least missed goes first. `None`: a table doesn't fit.
    fn fitting(rows: &[Row], width: usize) -> Option<Self> {
        let mut layout = Self::whole();
        let steps: [&dyn Fn(&mut Self); 9] = [
            &|_| {},
            &|layout| layout.shown[ID] = false,
            &|layout| layout.shown[PID] = false,
            &|layout| layout.who = 24,
            &|layout| layout.shown[LEFT] = false,
            &|layout| layout.who = 16,
            &|layout| layout.usual = false,
            &|layout| layout.name = 24,
            &|layout| layout.name = 16,
        ];
        for step in steps {
            step(&mut layout);
            if let Some(spare) = width.checked_sub(layout.least(rows)) {
                // What was cut gets some of the room that is left; the command has the rest.
                if layout.who < usize::MAX {
                    layout.who = (layout.who + spare).min(WIDE_WHO);
                }
                return Some(layout);
            }
        }
        None
    }

    /// How wide the columns are but for the command.
    fn widths(&self, rows: &[Row]) -> [usize; 8] {
        let mut widths = COLUMNS.map(columns);
        for row in rows {
            for (column, width) in widths.iter_mut().enumerate() {
                *width = columns(&row.cell(column, self)).max(*width);
            }
        }
        for (width, shown) in widths.iter_mut().zip(self.shown) {
            *width *= usize::from(shown);
        }
        widths
    }

    /// The least width of the table.
    fn least(&self, rows: &[Row]) -> usize {
        let widths = self.widths(rows);
        let gaps = self.shown.iter().filter(|shown| **shown).count() - 1;
        let command = widths[COMMAND].min(LEAST_COMMAND);
        widths[..COMMAND].iter().sum::<usize>() + gaps * GAP + command
    }

    fn picture(&self, rows: &[Row], width: usize) -> Picture {
        let widths = self.widths(rows);
        let shown = || (0..COLUMNS.len()).filter(|column| self.shown[*column]);
        let before: usize = shown()
            .filter(|column| *column < COMMAND)
            .map(|column| widths[column] + GAP)
            .sum();
        let room = width.saturating_sub(before);
        let add = |line: Line, column: usize, style, text: &str| {
            if column == COMMAND {
                return line.and(style, &truncate(text, room));
            }
            // The gap isn't coloured.
            let gap = widths[column].saturating_sub(columns(text)) + GAP;
            line.and(style, text).and_spaces(gap)
        };
        let mut picture = Picture::default();
        let heading = shown().fold(Line::default(), |line, column| {
            add(line, column, Style::Dim, COLUMNS[column])
        });
        picture.add(Kind::Heading, vec![heading]);
        for row in rows {
            let mut lines = vec![shown().fold(Line::default(), |line, column| {
                let style = row.style(column, self);
                add(line, column, style, &row.cell(column, self))
            })];
            if let Some(link) = &row.link {
                lines.push(Line::of(Style::Plain, format!("{:GAP$}{link}", "")));
            }
            picture.add(row.kind(), lines);
        }
        picture
    }
}

/// The rows of one lock: its holders, then its waiters.
fn rows_of(lock: &Inspected, on_terminal: bool) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    if let Some(by) = &lock.frozen {
        rows.push(frozen(lock, by, on_terminal));
    }
    if let Some(restarted) = lock.restarted {
        rows.push(after_restart(lock, restarted));
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
        Key::Held(holds) => {
            rows.extend(holds.iter().map(|hold| holding(lock, hold, on_terminal)));
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
                user_at_host(who),
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

/// Until when a restart of the server keeps all out.
fn after_restart(lock: &Inspected, restarted: Restarted) -> Row {
    let mut row = Row::single(lock, "held back", "-");
    let (left, why) = held_back(restarted, lock.now_ms, Duration::ZERO);
    row.cells[LEFT] = left;
    row.cells[COMMAND] = format!("({why})");
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
        _ if holder.kept => "kept".to_owned(),
        Some(slots) => format!("slot {}/{slots}", holder.slot),
        None => holder.limit.mode().to_owned(),
    };
    let mut row = Row::about(lock, mode, &holder.who, holder.since_ms, on_terminal);
    row.cells[ID].clone_from(&hold.id);
    if let Some(usual) = lock.usual.filter(|_| !holder.kept) {
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

fn waiting(lock: &Inspected, position: usize, waiting: &Waiting, on_terminal: bool) -> Row {
    let waiter = &waiting.waiter;
    let mode = format!("waiting #{position}");
    let mut row = Row::about(lock, mode, &waiter.who, waiter.since_ms, on_terminal);
    row.cells[ID].clone_from(&waiting.id);
    row.styles[MODE] = Style::Yellow;
    row
}

fn user_at_host(who: &Who) -> String {
    escaped(&format!("{}@{}", who.user, who.host)).into_owned()
}

/// How long it is since a moment of the server's clock.
fn ago(lock: &Inspected, since_ms: u64) -> String {
    format_duration(Duration::from_millis(lock.now_ms.saturating_sub(since_ms)))
}
