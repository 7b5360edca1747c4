//! The README and the pages of docs/ and tests/: the README is read in one sitting, each link leads somewhere, the README shows
//! the lines that redlock prints, and its recipes are among those that are run.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::generated::root;
use crate::roff::docs;
use crate::support::{Redis, Running, outcome, script, wait_until};

/// Returns the path of each page for people, from the root, and its text.
pub fn markdown() -> Vec<(String, String)> {
    let mut pages = vec!["README.md".to_owned(), "CONTRIBUTING.md".to_owned()];
    for directory in ["docs", "tests"] {
        for entry in fs::read_dir(root().join(directory)).unwrap().flatten() {
            let name = entry.file_name().into_string().unwrap();
            let is_page = Path::new(&name).extension().is_some_and(|end| end == "md");
            pages.extend(is_page.then(|| format!("{directory}/{name}")));
        }
    }
    pages.sort();
    let read = |page: String| {
        let text = fs::read_to_string(root().join(&page)).unwrap();
        (page, text)
    };
    pages.into_iter().map(read).collect()
}

/// Returns the lines of a page outside code blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut in_code = false;
    text.lines().filter(move |line| {
        let fence = line.starts_with("```");
        in_code ^= fence;
        !in_code && !fence
    })
}

/// Returns the language and text of each code block in a section of a page.
pub fn blocks(page: &str, heading: &str) -> Vec<(String, String)> {
    let (_, rest) = page
        .split_once(&format!("\n## {heading}\n"))
        .unwrap_or_else(|| panic!("no section {heading}"));
    let section = rest.split("\n## ").next().unwrap();
    let code = section.split("```").skip(1).step_by(2);
    let parts = code.map(|code| code.split_once('\n').unwrap());
    let owned = parts.map(|(language, text)| (language.to_owned(), text.to_owned()));
    owned.collect()
}

/// Returns the fragments of a page's headings, as GitHub generates them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for heading in prose(text).filter(|line| line.starts_with('#')) {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let is_kept = |c: &char| c.is_alphanumeric() || [' ', '-', '_'].contains(c);
        let kept: String = words.chars().filter(is_kept).collect();
        anchors.insert(kept.replace(' ', "-"));
    }
    anchors
}

/// Returns the targets of the links and pictures on a page.
fn links(text: &str) -> Vec<&str> {
    let marks = [("](", ')'), ("src=\"", '"'), ("href=\"", '"')];
    let mut links = Vec::new();
    for line in prose(text) {
        for (start, end) in marks {
            let rests = line.split(start).skip(1);
            links.extend(rests.filter_map(|rest| rest.split(end).next()));
        }
    }
    links
}

#[test]
fn each_link_leads_to_a_file_and_each_fragment_to_a_heading() {
    let pages = markdown().into_iter();
    let links: usize = pages
        .map(|(page, _)| assert_links_lead_somewhere(&root().join(page)))
        .sum();
    assert!(links > 20, "{links} links");
}

/// Checks that each link of a page to a file leads to one, and to a heading of it. Returns how many such links there are.
pub fn assert_links_lead_somewhere(page: &Path) -> usize {
    let text = fs::read_to_string(page).unwrap();
    let is_local = |link: &&str| !link.contains("://");
    let links: Vec<&str> = links(&text).into_iter().filter(is_local).collect();
    for link in &links {
        let (file, fragment) = link.split_once('#').unwrap_or((link, ""));
        let target = match file {
            "" => page.to_owned(),
            _ => page.parent().unwrap().join(file),
        };
        assert!(target.exists(), "{}: {link}: no such file", page.display());
        if !fragment.is_empty() {
            let text = fs::read_to_string(&target).unwrap();
            let is_heading = anchors(&text).contains(fragment);
            assert!(is_heading, "{}: {link}: no such heading", page.display());
        }
    }
    links.len()
}

#[test]
fn each_recipe_of_the_readme_is_run_as_one_of_the_recipes_page() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let shown = blocks(&readme, "Recipes");
    assert!(shown.len() >= 3, "{} recipes", shown.len());
    let all = docs("recipes");
    for (language, text) in shown {
        let recipe = format!("```{language}\n{text}```");
        assert!(all.contains(&recipe), "not in docs/recipes.md:\n{recipe}");
    }
}

#[test]
fn the_readme_has_at_most_300_lines() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let lines = readme.lines().count();
    assert!(lines <= 300, "{lines} lines; the rest belongs in docs/");
}

/// Returns a line without the parts that differ from run to run: users, durations, numbers and ids.
fn shape(line: &str) -> String {
    let shape_of = |word: &str| {
        let core = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
        let is_id = core.len() == 12 && core.bytes().all(|b| b.is_ascii_hexdigit());
        let is_time = core.starts_with(|c: char| c.is_ascii_digit()) && core.ends_with('s');
        let kind = match core.parse::<u64>() {
            _ if core.contains('@') => "WHO",
            _ if is_id => "ID",
            _ if is_time => "TIME",
            Ok(_) => "N",
            Err(_) => core,
        };
        word.replace(core, kind)
    };
    let words = line.split_whitespace().map(shape_of);
    words.collect::<Vec<_>>().join(" ")
}

#[test]
fn the_transcript_at_the_top_of_the_readme_is_what_redlock_prints() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let shown = readme.split("```").nth(1).expect("a block");
    let shown = shown.trim_start_matches("console\n");
    let redis = Redis::start();
    script(redis.dir.path(), "deploy.sh", "#!/bin/sh\nexec sleep 60\n");
    let run = |options: &[&str]| {
        let words = [&["run"], options, &["deploy", "--", "./deploy.sh"]].concat();
        let mut command = redis.redlock(&words);
        command.current_dir(redis.dir.path());
        command
    };
    let _holder = Running::start(&mut run(&["-q", "--reason", "release-1.2"]));
    wait_until("it is held", || {
        redis.cli(&["EXISTS", "redlock:deploy"]) == "1"
    });
    let _waiter = Running::start(&mut run(&["-q", "--reason", "release-1.3"]));
    wait_until("the first waits", || redis.queue("deploy").len() == 1);

    let mut printed = String::from("$ redlock run --no-wait deploy -- ./deploy.sh\n");
    printed += &outcome(&mut run(&["--no-wait"])).assert_code(75).stderr;
    printed += "$ redlock status\n";
    let mut status = redis.redlock(&["status"]);
    printed += &outcome(status.env("COLUMNS", "200")).stdout;
    printed += "$ redlock run deploy -- ./deploy.sh\n";
    // redlock prints the line after a second.
    let waits = outcome(&mut run(&["--wait", "5s"]));
    printed += waits.assert_code(75).stderr.lines().next().expect("a line");

    let [shown, printed] = [shown, &printed].map(|text| {
        let lines = text.lines().map(shape);
        lines.collect::<Vec<_>>().join("\n")
    });
    assert_eq!(shown, printed);
}

/// Returns the names of all elements of a picture, and its text.
pub fn parsed_picture(file: &Path) -> String {
    let script = "
import sys, xml.etree.ElementTree as tree
root = tree.parse(sys.argv[1]).getroot()
print(*(element.tag for element in root.iter()), *root.itertext())";
    let mut parser = Command::new("python3");
    let parsed = outcome(parser.args(["-c", script]).arg(file));
    parsed.assert_code(0).stdout.clone()
}

#[test]
fn the_demo_is_a_small_picture_without_a_script_that_ends_with_both_runs() {
    let file = root().join("docs/demo.svg");
    assert!(fs::metadata(&file).unwrap().len() < 100_000);
    let parsed = parsed_picture(&file);
    assert!(!parsed.contains("}script "), "{parsed}");
    let shown = [
        "waiting for \"deploy\"",
        "got \"deploy\" after",
        "ci@ci-3 ended",
        "ann@laptop ended",
    ];
    for text in shown {
        assert!(parsed.contains(text), "no {text} in {parsed}");
    }
}
