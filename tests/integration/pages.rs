//! The README and the pages of docs/: each link leads somewhere, and the README's recipes are among those that are run.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::generated::{recipes, root};

/// The pages for people: where each is, from the root, and its text.
pub fn markdown() -> Vec<(String, String)> {
    let mut pages = vec!["README.md".to_owned(), "CONTRIBUTING.md".to_owned()];
    for entry in fs::read_dir(root().join("docs")).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        let is_page = Path::new(&name).extension().is_some_and(|end| end == "md");
        pages.extend(is_page.then(|| format!("docs/{name}")));
    }
    pages.sort();
    let read = |page: String| {
        let text = fs::read_to_string(root().join(&page)).unwrap();
        (page, text)
    };
    pages.into_iter().map(read).collect()
}

/// The lines of a page that aren't code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut in_code = false;
    text.lines().filter(move |line| {
        let fence = line.starts_with("```");
        in_code ^= fence;
        !in_code && !fence
    })
}

/// The code blocks of a text.
fn code(text: &str) -> Vec<&str> {
    text.split("```").skip(1).step_by(2).collect()
}

/// The fragments that lead to the headings of a page, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    for heading in prose(text).filter(|line| line.starts_with('#')) {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = words
            .chars()
            .filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
        let base = kept.collect::<String>().replace(' ', "-");
        let mut anchor = base.clone();
        let mut number = 0;
        while !anchors.insert(anchor) {
            number += 1;
            anchor = format!("{base}-{number}");
        }
    }
    anchors
}

/// The targets of the links and pictures of a page.
fn links(text: &str) -> Vec<&str> {
    let mut links = Vec::new();
    for line in prose(text) {
        links.extend(
            line.split("](")
                .skip(1)
                .filter_map(|rest| rest.split(')').next()),
        );
        for quoted in ["src=\"", "href=\""] {
            links.extend(
                line.split(quoted)
                    .skip(1)
                    .filter_map(|rest| rest.split('"').next()),
            );
        }
    }
    links
}

#[test]
fn each_link_leads_to_a_file_and_each_fragment_to_a_heading() {
    let mut checked = 0;
    for (page, text) in markdown() {
        let directory = root().join(&page).parent().unwrap().to_owned();
        for link in links(&text) {
            if link.contains("://") {
                continue;
            }
            let (file, fragment) = link.split_once('#').unwrap_or((link, ""));
            let there = if file.is_empty() {
                root().join(&page)
            } else {
                directory.join(file)
            };
            assert!(there.exists(), "{page}: {link} leads to no file");
            if !fragment.is_empty() {
                let text = fs::read_to_string(&there).unwrap();
                let is_there = anchors(&text).contains(fragment);
                assert!(is_there, "{page}: {link} leads to no heading");
            }
            checked += 1;
        }
    }
    assert!(checked > 20, "{checked} links");
}

#[test]
fn each_recipe_of_the_readme_is_run_as_one_of_the_recipes_page() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let (_, section) = readme.split_once("\n## Recipes\n").expect("the section");
    let (section, _) = section.split_once("\n## ").expect("another section");
    let all = recipes();
    let all = code(&all);
    let shown = code(section);
    assert!(shown.len() >= 4, "{} recipes", shown.len());
    for recipe in shown {
        assert!(all.contains(&recipe), "not in docs/recipes.md:\n{recipe}");
    }
}
