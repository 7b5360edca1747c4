//! A table whose columns shrink, in an order that its user states, until it fits the terminal. Widths are columns of the
//! terminal, not characters. Pure: the caller passes the width of the terminal.

use super::style::Style;
use super::text::{columns, truncate};

/// A step to make a table narrower. Headings identify the columns.
#[derive(Clone, Copy, Debug)]
pub enum Narrowing<'a> {
    /// Leaves the column out.
    Hide(&'a str),
    /// Limits the column's width to the last number, and cuts it further as far as necessary, down to the first number.
    Cut(&'a str, usize, usize),
}

/// The columns of a table, for a width.
#[derive(Clone, Debug)]
pub struct Table {
    headings: Vec<String>,
    widths: Vec<usize>,
    shown: Vec<usize>,
    width: usize,
}

/// Spaces between two columns.
const GAP: usize = 2;

impl Table {
    /// Returns a table that is wide enough for these rows. Cells must be safe for a terminal.
    pub fn new<'a>(headings: &[&str], rows: impl IntoIterator<Item = &'a [String]>) -> Self {
        let mut widths: Vec<usize> = headings.iter().map(|heading| columns(heading)).collect();
        for row in rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = columns(cell).max(*width);
            }
        }
        Self {
            headings: headings.iter().map(|&heading| heading.into()).collect(),
            shown: (0..headings.len()).collect(),
            widths,
            width: usize::MAX,
        }
    }

    /// Takes one step after the other until the table fits a terminal of this width, if there is one. If the table is still too
    /// wide, its lines are cut.
    pub fn fit(&mut self, width: Option<usize>, steps: &[Narrowing]) {
        self.width = width.unwrap_or(usize::MAX);
        for step in steps {
            match *step {
                _ if self.lacking() == 0 => break,
                Narrowing::Hide(heading) => self.hide(heading),
                Narrowing::Cut(heading, least, most) => {
                    let column = self.headings.iter().position(|it| it == heading);
                    let column = column.expect("a heading of this table");
                    let natural = self.widths[column];
                    self.widths[column] = most.min(natural);
                    let cut = self.widths[column].saturating_sub(self.lacking());
                    self.widths[column] = cut.max(least.min(natural));
                }
            }
        }
    }

    pub fn hide(&mut self, heading: &str) {
        self.shown
            .retain(|column| self.headings[*column] != heading);
    }

    /// Returns the number of columns that the table exceeds the terminal by.
    fn lacking(&self) -> usize {
        let widths = self.shown.iter().map(|at| self.widths[*at] + GAP);
        let taken = widths.sum::<usize>().saturating_sub(GAP);
        taken.saturating_sub(self.width)
    }

    /// Returns the line of headings.
    pub fn heading(&self) -> String {
        self.line(&self.headings, |_| Style::Dim)
    }

    /// Returns the line of a row. `style` returns the style of a column.
    pub fn line(&self, cells: &[String], style: impl Fn(usize) -> Style) -> String {
        let mut line = String::new();
        // Start of the next column, and current width of the line.
        let (mut start, mut used) = (0, 0);
        for &at in &self.shown {
            let room = self.width.saturating_sub(start);
            if room == 0 {
                break;
            }
            let is_last = self.shown.last() == Some(&at);
            let width = if is_last {
                room
            } else {
                room.min(self.widths[at])
            };
            let text = truncate(&cells[at], width);
            // The gap isn't coloured.
            line += &(" ".repeat(start - used) + &style(at).paint(&text));
            used = start + columns(&text);
            start += self.widths[at] + GAP;
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::super::style::painted;
    use super::*;

    const HEADINGS: [&str; 3] = ["NAME", "WHO", "COMMAND"];

    fn rows() -> [[String; 3]; 2] {
        let long = [
            "deploy-production",
            "runner@build-agent-17",
            "./deploy.sh --now",
        ];
        [long, ["東京", "ci@h", "x"]].map(|row| row.map(str::to_owned))
    }

    fn table() -> Table {
        Table::new(&HEADINGS, rows().iter().map(|row| &row[..]))
    }

    fn row(table: &Table, row: &[String]) -> String {
        table.line(row, |_| Style::Plain).trim_end().to_owned()
    }

    #[test]
    fn columns_give_way_in_the_order_of_the_steps() {
        const ANY: usize = usize::MAX;
        let steps = [
            Narrowing::Cut("COMMAND", 8, ANY),
            Narrowing::Cut("WHO", 8, 12),
            Narrowing::Hide("WHO"),
            Narrowing::Cut("NAME", 8, ANY),
        ];
        let fitted = |width| {
            let mut table = table();
            table.fit(width, &steps);
            row(&table, &rows()[0])
        };
        for line in [
            "deploy-production  runner@build-agent-17  ./deploy.sh --now",
            "deploy-production  runner@build-agent-17  ./deploy.sh --n…",
            // A short WHO leaves more columns for the command.
            "deploy-production  runner@buil…  ./deploy.sh --n…",
            "deploy-production  runner@…  ./deplo…",
            "deploy-production  ./deploy.sh --now",
            "deploy-production  ./deplo…",
            "deploy-pr…  ./deplo…",
        ] {
            assert_eq!(fitted(Some(columns(line))), line);
        }
        assert_eq!(fitted(None), fitted(Some(59)));
        assert_eq!(fitted(Some(9)), "deploy-…");
    }

    #[test]
    fn wide_characters_stand_in_columns() {
        let mut table = table();
        table.fit(None, &[]);
        let heading = painted(&[table.heading()], false);
        let at = heading.find("WHO").unwrap();
        let wide = row(&table, &rows()[1]);
        assert_eq!(columns(&wide[..wide.find("ci@h").unwrap()]), at);
    }
}
