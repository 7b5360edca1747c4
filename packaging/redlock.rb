# Homebrew formula, for Linux. `make release` fills the checksums in.
class Redlock < Formula
  desc "Mutual exclusion for shell scripts, across hosts, over Redis"
  homepage "https://github.com/example/redlock"
  version "0.1.0"
  license any_of: ["MIT", "Apache-2.0"]

  depends_on :linux

  on_intel do
    url "https://github.com/example/redlock/releases/download/v0.1.0/redlock-0.1.0-x86_64-unknown-linux-musl.tar.gz"
    sha256 "SHA256-OF-x86_64"
  end

  on_arm do
    url "https://github.com/example/redlock/releases/download/v0.1.0/redlock-0.1.0-aarch64-unknown-linux-musl.tar.gz"
    sha256 "SHA256-OF-aarch64"
  end

  def install
    bin.install "bin/redlock"
    man1.install Dir["share/man/man1/*"]
    man7.install Dir["share/man/man7/*"]
    bash_completion.install "share/bash-completion/completions/redlock"
    zsh_completion.install "share/zsh/site-functions/_redlock"
    fish_completion.install "share/fish/vendor_completions.d/redlock.fish"
    doc.install "share/doc/redlock/monitoring"
  end

  test do
    assert_match "redlock #{version}", shell_output("#{bin}/redlock --version")
  end
end
