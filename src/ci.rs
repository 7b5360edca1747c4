//! CI jobs, their names and links, from the variables of the systems that run them. Pure.

/// The link to the job that we run in, by the variables that CI systems set.
pub fn link(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    // Each system is recognised by a variable that only it sets; CI_JOB_URL and the like may be left
    // over from an outer system otherwise.
    if variable("GITHUB_ACTIONS").is_some() {
        let server = variable("GITHUB_SERVER_URL")?;
        let repository = variable("GITHUB_REPOSITORY")?;
        let run = variable("GITHUB_RUN_ID")?;
        return Some(format!("{server}/{repository}/actions/runs/{run}"));
    }
    if let Some(build) = variable("BUILDKITE_BUILD_URL") {
        let job = variable("BUILDKITE_JOB_ID").map(|job| format!("#{job}"));
        return Some(build + &job.unwrap_or_default());
    }
    let urls = ["CI_JOB_URL", "CIRCLE_BUILD_URL"];
    let jenkins = variable("JENKINS_URL").and_then(|_| variable("BUILD_URL"));
    urls.into_iter().find_map(&variable).or(jenkins)
}

/// The job that we run in, by the variables that CI systems set: the project, the job and its number.
pub fn job(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let (_, project, job, number) = JOBS
        .into_iter()
        .find(|(system, ..)| variable(system).is_some())?;
    let of = |names: &[&str]| {
        let parts: Vec<String> = names.iter().filter_map(|name| variable(name)).collect();
        (!parts.is_empty()).then(|| parts.join("/"))
    };
    let number = variable(number).map(|number| format!("#{number}"));
    let words: Vec<String> = of(project)
        .into_iter()
        .chain(of(&[job]))
        .chain(number)
        .collect();
    (!words.is_empty()).then(|| words.join(" "))
}

/// The variables of a CI system: one that only it sets; the project; the job; its number.
type Job = (
    &'static str,
    &'static [&'static str],
    &'static str,
    &'static str,
);
const JOBS: [Job; 6] = [
    (
        "GITHUB_ACTIONS",
        &["GITHUB_REPOSITORY"],
        "GITHUB_JOB",
        "GITHUB_RUN_NUMBER",
    ),
    (
        "GITLAB_CI",
        &["CI_PROJECT_PATH"],
        "CI_JOB_NAME",
        "CI_PIPELINE_ID",
    ),
    (
        "BUILDKITE",
        &["BUILDKITE_ORGANIZATION_SLUG", "BUILDKITE_PIPELINE_SLUG"],
        "BUILDKITE_LABEL",
        "BUILDKITE_BUILD_NUMBER",
    ),
    (
        "CIRCLECI",
        &["CIRCLE_PROJECT_USERNAME", "CIRCLE_PROJECT_REPONAME"],
        "CIRCLE_JOB",
        "CIRCLE_BUILD_NUM",
    ),
    (
        "TF_BUILD",
        &["BUILD_REPOSITORY_NAME"],
        "BUILD_DEFINITIONNAME",
        "BUILD_BUILDNUMBER",
    ),
    ("JENKINS_URL", &[], "JOB_NAME", "BUILD_NUMBER"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_system_has_its_own_variables() {
        for (set, url) in [
            (
                &[
                    ("GITHUB_ACTIONS", "true"),
                    ("GITHUB_SERVER_URL", "https://github.com"),
                    ("GITHUB_REPOSITORY", "o/r"),
                    ("GITHUB_RUN_ID", "7"),
                ][..],
                Some("https://github.com/o/r/actions/runs/7"),
            ),
            (
                &[("CI_JOB_URL", "https://gitlab/j/1")],
                Some("https://gitlab/j/1"),
            ),
            (
                &[("JENKINS_URL", "http://j"), ("BUILD_URL", "http://j/job/1")],
                Some("http://j/job/1"),
            ),
            (&[("BUILD_URL", "not Jenkins")], None),
            (
                &[
                    ("BUILDKITE_BUILD_URL", "https://b/1"),
                    ("BUILDKITE_JOB_ID", "x"),
                ],
                Some("https://b/1#x"),
            ),
            (
                &[("BUILDKITE_BUILD_URL", "https://b/1")],
                Some("https://b/1"),
            ),
            (&[("CIRCLE_BUILD_URL", "https://c/1")], Some("https://c/1")),
            (&[], None),
        ] {
            let variable = |name: &str| {
                let found = set.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            assert_eq!(link(variable).as_deref(), url);
        }
    }

    #[test]
    fn a_job_is_named_by_its_project_its_name_and_its_number() {
        let github = [
            ("GITHUB_ACTIONS", "true"),
            ("GITHUB_REPOSITORY", "acme/shop"),
            ("GITHUB_JOB", "deploy"),
            ("GITHUB_RUN_NUMBER", "1234"),
        ];
        let jenkins = [
            ("JENKINS_URL", "http://j"),
            ("JOB_NAME", "shop/main"),
            ("BUILD_NUMBER", "7"),
        ];
        let buildkite = [
            ("BUILDKITE", "true"),
            ("BUILDKITE_ORGANIZATION_SLUG", "acme"),
            ("BUILDKITE_PIPELINE_SLUG", "shop"),
        ];
        for (set, job) in [
            (&github[..], Some("acme/shop deploy #1234")),
            (&jenkins, Some("shop/main #7")),
            (&buildkite, Some("acme/shop")),
            (&[("GITLAB_CI", "true")], None),
            (&[("GITHUB_JOB", "left over")], None),
            (&[], None),
        ] {
            let variable = |name: &str| {
                let found = set.iter().find(|(key, _)| *key == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            assert_eq!(super::job(variable).as_deref(), job);
        }
    }
}
