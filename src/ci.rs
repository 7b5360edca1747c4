//! Names and links of CI jobs, from the environment variables of the CI systems. Pure.

/// Returns the link to the current CI job, from the variables that CI systems set.
pub fn link(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    // A variable that only one system sets identifies the system. CI_JOB_URL and others may be left over from an outer system.
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

/// Returns the current CI job, from the variables that CI systems set: the project, the job and its number.
pub fn job(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let mut rows = JOBS.lines().filter_map(|row| row.split_once(": "));
    let (_, parts) = rows.find(|(system, _)| variable(system).is_some())?;
    let value = |part: &str| {
        if let Some(number) = part.strip_prefix('#') {
            return Some(format!("#{}", variable(number)?));
        }
        let values: Vec<String> = part.split('/').filter_map(&variable).collect();
        (!values.is_empty()).then(|| values.join("/"))
    };
    let words: Vec<String> = parts.split(' ').filter_map(value).collect();
    (!words.is_empty()).then(|| words.join(" "))
}

/// The variables of each CI system: one that only that system sets, and those of the project, the job and its number. Parts
/// without a value are left out.
const JOBS: &str = "\
GITHUB_ACTIONS: GITHUB_REPOSITORY GITHUB_JOB #GITHUB_RUN_NUMBER
GITLAB_CI: CI_PROJECT_PATH CI_JOB_NAME #CI_PIPELINE_ID
BUILDKITE: BUILDKITE_ORGANIZATION_SLUG/BUILDKITE_PIPELINE_SLUG BUILDKITE_LABEL #BUILDKITE_BUILD_NUMBER
CIRCLECI: CIRCLE_PROJECT_USERNAME/CIRCLE_PROJECT_REPONAME CIRCLE_JOB #CIRCLE_BUILD_NUM
TF_BUILD: BUILD_REPOSITORY_NAME BUILD_DEFINITIONNAME #BUILD_BUILDNUMBER
JENKINS_URL: JOB_NAME #BUILD_NUMBER";

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
                let pair = set.iter().find(|(key, _)| *key == name);
                pair.map(|(_, value)| (*value).to_owned())
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
                let pair = set.iter().find(|(key, _)| *key == name);
                pair.map(|(_, value)| (*value).to_owned())
            };
            assert_eq!(super::job(variable).as_deref(), job);
        }
    }
}
