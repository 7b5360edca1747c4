//! Where this isn't Linux, nothing is supervised; here is what the commands of a job and of people use all the same.

pub mod environment;

pub mod process {
    //! No holder is a process of this host.

    /// No hold has a mark here.
    pub fn remove_mark(_id: &str) {}
}
