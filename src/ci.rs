//! Links to CI jobs, from the variables of the systems that run them. Pure.

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
}
