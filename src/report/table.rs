//! The one table: columns that give way, in an order that its user states, until the table fits the terminal. Widths
//! are those of the terminal, not characters. Pure: it never asks how wide the terminal is.

use std::borrow::Cow;

use super::style::{Line, Style};
use super::text::{columns, shorten, truncate};

/// A cell: safe for a terminal, and how it looks.
pub type Cell<'a> = (Style, Cow<'a, str>);

/// How a table gives way. Columns are known by their numbers.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// The column is left out.
    Hide(usize),
    /// The column shows the brief form of its heading and cells.
    Brief(usize),
    /// All columns are brief, and one space apart.
    Dense,
    /// The column is no wider than the last number, and cut as far as it has to be: down to the first one.
    Cut(usize, usize, usize),
}

/// A column. It is cut at its end, unless it says otherwise.
#[derive(Clone, Debug, Default)]
pub struct Column {
    /// The heading, and how wide the column would have to be: in full, and brief.
    headings: [Cow<'static, str>; 2],
    natural: [usize; 2],
    is_right: bool,
    is_middle: bool,
    is_whole: bool,
    /// Which of the forms is shown, and how wide.
    form: usize,
    width: usize,
}

impl Column {
    pub fn new(heading: &'static str) -> Self {
        Self::of(heading, heading)
    }

    /// A column with a heading of its own for its brief form.
    pub fn of(full: &'static str, brief: impl Into<Cow<'static, str>>) -> Self {
        let headings = [full.into(), brief.into()];
        Self {
            natural: [columns(&headings[0]), columns(&headings[1])],
            headings,
            ..Self::default()
        }
    }

    /// Its cells stand at its right end.
    pub fn right(self) -> Self {
        let is_right = true;
        Self { is_right, ..self }
    }

    /// It is cut in its middle, as both ends say something.
    pub fn middle(self) -> Self {
        let is_middle = true;
        Self { is_middle, ..self }
    }

    /// The same; and until a step cuts it, a cell that is too long moves the rest of its line. It is typed next.
    pub fn whole(self) -> Self {
        let is_whole = true;
        Self {
            is_whole,
            ..self.middle()
        }
    }

    /// It is at least this wide, as wider cells may come.
    pub fn at_least(mut self, width: usize) -> Self {
        self.natural = self.natural.map(|natural| natural.max(width));
        self
    }
}

/// The columns of a table, for a width.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<Column>,
    shown: Vec<usize>,
    /// Columns that may be cut, their least widths and their most, in the order in which they are.
    cuts: Vec<(usize, usize, usize)>,
    gap: usize,
    width: usize,
}

impl Table {
    /// The columns as wide as these rows have to have them. `cell`: that of a row and column, in full or brief.
    pub fn new<'a, R>(
        mut columns: Vec<Column>,
        rows: &'a [R],
        cell: impl Fn(&'a R, usize, bool) -> Cell<'a>,
    ) -> Self {
        for row in rows {
            for (at, column) in columns.iter_mut().enumerate() {
                for (natural, brief) in column.natural.iter_mut().zip([false, true]) {
                    *natural = super::columns(&cell(row, at, brief).1).max(*natural);
                }
            }
        }
        Self {
            shown: (0..columns.len()).collect(),
            columns,
            cuts: Vec::new(),
            gap: 2,
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
            Step::Hide(column) => {
                self.shown.retain(|shown| *shown != column);
                self.cuts.retain(|cut| cut.0 != column);
            }
            Step::Brief(column) => self.columns[column].form = 1,
            Step::Dense => {
                self.gap = 1;
                self.columns.iter_mut().for_each(|column| column.form = 1);
            }
            // A column that was left out gives no room any more.
            Step::Cut(column, least, most) if self.shown.contains(&column) => {
                self.columns[column].is_whole = false;
                self.cuts.push((column, least, most));
            }
            Step::Cut(..) => {}
        }
    }

    /// Lays the columns out; whether they fit.
    fn fits(&mut self) -> bool {
        for column in &mut self.columns {
            column.width = column.natural[column.form];
        }
        for &(at, _, most) in &self.cuts {
            self.columns[at].width = most.min(self.columns[at].width);
        }
        let widths = self
            .shown
            .iter()
            .map(|at| self.columns[*at].width + self.gap);
        let taken = widths.sum::<usize>().saturating_sub(self.gap);
        let mut lacking = taken.saturating_sub(self.width);
        for &(at, least, _) in &self.cuts {
            let by = lacking.min(self.columns[at].width.saturating_sub(least));
            self.columns[at].width -= by;
            lacking -= by;
        }
        lacking == 0
    }

    /// The line of headings.
    pub fn heading(&self) -> Line {
        self.line(|column, brief| {
            let heading = &self.columns[column].headings[usize::from(brief)];
            (Style::Dim, heading.as_ref().into())
        })
    }

    /// The line of a row, which need not be one of those that the columns were made for.
    pub fn line<'a>(&self, cell: impl Fn(usize, bool) -> Cell<'a>) -> Line {
        let mut line = Line::default();
        // Where the column begins, where it should, and how far the line goes.
        let (mut start, mut planned, mut used) = (0, 0, 0);
        for &at in &self.shown {
            let column = &self.columns[at];
            let room = self.width.saturating_sub(start);
            if room == 0 {
                break;
            }
            let width = column.width.min(room);
            let takes_all = column.is_whole || self.shown.last() == Some(&at);
            let cut = if column.is_middle { shorten } else { truncate };
            let (style, text) = cell(at, column.form == 1);
            let text = cut(&text, if takes_all { room } else { width });
            let taken = columns(&text);
            let before = if column.is_right {
                width.saturating_sub(taken)
            } else {
                0
            };
            // The gap isn't coloured.
            line = line.and_spaces(start - used + before).and(style, &text);
            used = start + before + taken;
            planned += column.width + self.gap;
            start = planned.max(used + self.gap);
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: [[&str; 3]; 2] = [
        [
            "deploy-production",
            "runner@build-agent-17",
            "./deploy.sh --now",
        ],
        ["東京", "ci@h", "x"],
    ];

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
        let [name, who, command] = all;
        Table::new(vec![name.whole(), who.middle(), command], &ROWS, cell)
    }

    fn row(table: &Table, row: &[&str; 3]) -> String {
        let line = table.line(|column, brief| cell(row, column, brief));
        line.painted(false, false)
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
        for (width, expected, fits) in [
            (
                None,
                "deploy-production  runner@build-agent-17  ./deploy.sh --now",
                true,
            ),
            (
                Some(58),
                "deploy-production  runner@build-agent-17  ./deploy.sh --n…",
                true,
            ),
            // Once it is cut, it leaves room for the command.
            (
                Some(49),
                "deploy-production  runner@bu…17  ./deploy.sh --n…",
                true,
            ),
            (Some(38), "deploy-production  runner…17  ./deplo…", true),
            (Some(36), "deploy-production  ./deploy.sh --now", true),
            (Some(27), "deploy-production  ./deplo…", true),
            (Some(20), "deploy-…on  ./deplo…", true),
            (Some(9), "deploy…n", false),
        ] {
            let mut table = table();
            assert_eq!(table.fit(width, &stages), fits, "{width:?}");
            assert_eq!(row(&table, &ROWS[0]), expected, "{width:?}");
        }
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
        let heading = table.heading().painted(false, false);
        let at = heading.find("WHO").unwrap();
        let wide = row(&table, &ROWS[1]);
        assert_eq!(columns(&wide[..wide.find("ci@h").unwrap()]), at);
    }

    #[test]
    fn a_name_that_comes_later_is_whole_and_moves_as_little_as_it_can() {
        let mut table = Table::new(
            vec![
                Column::new("NAME").whole(),
                Column::new("WHO").at_least(8),
                Column::new("COMMAND"),
            ],
            &[],
            cell,
        );
        assert!(table.fit(None, &[&[]]));
        assert_eq!(
            row(&table, &["a", "ci@ci-7-long", "x"]),
            "a     ci@ci-7…  x"
        );
        assert_eq!(row(&table, &["deploy", "ci@h", "x"]), "deploy  ci@h    x");
        assert_eq!(
            row(&table, &["deploy-it-all", "ci@h", "x"]),
            "deploy-it-all  ci@h  x"
        );
    }

    #[test]
    fn numbers_stand_at_the_right_and_a_dense_table_is_brief() {
        let columns = [
            Column::new("NAME"),
            Column::new("RUNS").right(),
            Column::of("LONGEST", "MAX").right(),
        ];
        let rows = [["a", "10", "1m40s"]];
        let mut table = Table::new(columns.to_vec(), &rows, cell);
        assert!(table.fit(Some(80), &[&[], &[Step::Dense]]));
        assert_eq!(row(&table, &rows[0]), "a       10    1m40s");
        assert!(table.fit(Some(13), &[&[], &[Step::Dense]]));
        assert_eq!(table.heading().painted(false, false), "NAME RUNS MAX");
        assert_eq!(row(&table, &rows[0]), "a       1   1");
    }
}
