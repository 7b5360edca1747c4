//! The one table: columns that give way, in an order that its user states, until the table fits the terminal. Widths
//! are those of the terminal, not characters. Pure: it never asks how wide the terminal is.

use std::borrow::Cow;

use super::style::{Line, Style};
use super::text::{columns, truncate};

/// A cell: safe for a terminal, and how it looks.
pub type Cell<'a> = (Style, Cow<'a, str>);

/// Way of a table to become narrower. Columns are known by their numbers.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// The column is left out.
    Hide(usize),
    /// The column shows the brief form of its heading and cells.
    Brief(usize),
    /// The column is no wider than the last number, and cut as far as it must be: down to the first one.
    Cut(usize, usize, usize),
}

/// A column.
#[derive(Clone, Debug, Default)]
pub struct Column {
    /// The heading, and the width of the widest cell: in full, and brief.
    headings: [Cow<'static, str>; 2],
    natural: [usize; 2],
    /// Form that is shown, and its width.
    form: usize,
    width: usize,
}

impl Column {
    pub fn new(heading: &'static str) -> Self {
        Self::of(heading, heading)
    }

    /// Returns a column with a heading of its own for its brief form.
    pub fn of(full: &'static str, brief: impl Into<Cow<'static, str>>) -> Self {
        Self {
            headings: [full.into(), brief.into()],
            ..Self::default()
        }
    }
}

/// The columns of a table, for a width.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<Column>,
    shown: Vec<usize>,
    /// Columns that may be cut, their least widths and their most, in the order in which they are cut.
    cuts: Vec<(usize, usize, usize)>,
    width: usize,
}

/// Spaces between two columns.
const GAP: usize = 2;

impl Table {
    /// Returns columns that are wide enough for these rows. `cell`: that of a row and column, in full or brief.
    pub fn new<'a, R>(
        mut columns: Vec<Column>,
        rows: &'a [R],
        cell: impl Fn(&'a R, usize, bool) -> Cell<'a>,
    ) -> Self {
        for (at, column) in columns.iter_mut().enumerate() {
            for form in [0, 1] {
                let cells = rows.iter().map(|row| cell(row, at, form == 1).1);
                let texts = cells.chain([column.headings[form].clone()]);
                let widest = texts.map(|text| super::columns(&text)).max();
                column.natural[form] = widest.unwrap_or(0);
            }
        }
        Self {
            shown: (0..columns.len()).collect(),
            columns,
            cuts: Vec::new(),
            width: usize::MAX,
        }
    }

    /// Takes one stage after the other until the table fits a terminal of this width, if there is one; false if it
    /// doesn't even after the last.
    pub fn fit(&mut self, width: Option<usize>, stages: &[&[Step]]) -> bool {
        self.width = width.unwrap_or(usize::MAX);
        stages.iter().any(|stage| {
            stage.iter().for_each(|step| self.take(*step));
            self.fits()
        })
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Hide(column) => self.shown.retain(|shown| *shown != column),
            Step::Brief(column) => self.columns[column].form = 1,
            Step::Cut(column, least, most) => self.cuts.push((column, least, most)),
        }
    }

    /// Lays the columns out. Returns true if they fit.
    fn fits(&mut self) -> bool {
        for column in &mut self.columns {
            column.width = column.natural[column.form];
        }
        // A column that is left out gives no room.
        let cuts = self.cuts.iter().filter(|cut| self.shown.contains(&cut.0));
        for &(at, _, most) in cuts.clone() {
            self.columns[at].width = most.min(self.columns[at].width);
        }
        let widths = self.shown.iter().map(|at| self.columns[*at].width + GAP);
        let taken = widths.sum::<usize>().saturating_sub(GAP);
        let mut lacking = taken.saturating_sub(self.width);
        for &(at, least, _) in cuts {
            let by = lacking.min(self.columns[at].width.saturating_sub(least));
            self.columns[at].width -= by;
            lacking -= by;
        }
        lacking == 0
    }

    /// Returns the line of headings.
    pub fn heading(&self) -> Line {
        self.line(|column, brief| {
            let heading = &self.columns[column].headings[usize::from(brief)];
            (Style::Dim, heading.as_ref().into())
        })
    }

    /// Returns the line of a row.
    pub fn line<'a>(&self, cell: impl Fn(usize, bool) -> Cell<'a>) -> Line {
        let mut line = Line::default();
        // Where the column begins, and how far the line goes.
        let (mut start, mut used) = (0, 0);
        for &at in &self.shown {
            let column = &self.columns[at];
            let room = self.width.saturating_sub(start);
            if room == 0 {
                break;
            }
            let is_last = self.shown.last() == Some(&at);
            let width = if is_last {
                room
            } else {
                room.min(column.width)
            };
            let (style, text) = cell(at, column.form == 1);
            let text = truncate(&text, width);
            // The gap isn't coloured.
            line = line.and_spaces(start - used).and(style, &text);
            used = start + columns(&text);
            start += column.width + GAP;
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: [&str; 3] = [
        "deploy-production",
        "runner@build-agent-17",
        "./deploy.sh --now",
    ];
    const ROWS: [[&str; 3]; 2] = [LONG, ["東京", "ci@h", "x"]];

    fn cell<'a>(row: &'a [&'a str; 3], column: usize, brief: bool) -> Cell<'a> {
        let text = row[column];
        let text = if brief && text.is_ascii() {
            &text[..1]
        } else {
            text
        };
        (Style::Plain, text.into())
    }

    const NAME: usize = 0;
    const WHO: usize = 1;
    const COMMAND: usize = 2;

    fn table() -> Table {
        let all = ["NAME", "WHO", "COMMAND"].map(Column::new);
        Table::new(all.into(), &ROWS, cell)
    }

    fn row(table: &Table, row: &[&str; 3]) -> String {
        let line = table.line(|column, brief| cell(row, column, brief));
        line.painted(false)
    }

    #[test]
    fn columns_give_way_in_the_order_of_the_stages() {
        const ANY: usize = usize::MAX;
        let stages: [&[Step]; 4] = [
            &[Step::Cut(COMMAND, 8, ANY)],
            &[Step::Cut(WHO, 8, 12)],
            &[Step::Hide(WHO)],
            &[Step::Cut(NAME, 8, ANY)],
        ];
        let fitted = |width| {
            let mut table = table();
            let fits = table.fit(width, &stages);
            (row(&table, &ROWS[0]), fits)
        };
        for line in [
            "deploy-production  runner@build-agent-17  ./deploy.sh --now",
            "deploy-production  runner@build-agent-17  ./deploy.sh --n…",
            // Once it is cut, it leaves room for the command.
            "deploy-production  runner@buil…  ./deploy.sh --n…",
            "deploy-production  runner@…  ./deplo…",
            "deploy-production  ./deploy.sh --now",
            "deploy-production  ./deplo…",
            "deploy-pr…  ./deplo…",
        ] {
            assert_eq!(fitted(Some(columns(line))), (line.to_owned(), true));
        }
        assert_eq!(fitted(None), fitted(Some(59)));
        assert_eq!(fitted(Some(9)), ("deploy-…".to_owned(), false));
    }

    #[test]
    fn a_column_that_is_left_out_gives_no_room_when_it_is_cut() {
        let mut table = table();
        let stages: [&[Step]; 2] = [&[Step::Hide(NAME)], &[Step::Cut(NAME, 1, 99)]];
        assert!(!table.fit(Some(39), &stages));
        assert!(table.fit(Some(40), &stages));
    }

    #[test]
    fn wide_characters_stand_in_columns() {
        let mut table = table();
        assert!(table.fit(None, &[&[]]));
        let heading = table.heading().painted(false);
        let at = heading.find("WHO").unwrap();
        let wide = row(&table, &ROWS[1]);
        assert_eq!(columns(&wide[..wide.find("ci@h").unwrap()]), at);
    }
}
