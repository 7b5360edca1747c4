//! Where this isn't Linux, nothing is supervised; here is what the commands of a job and of people use all the same.

pub mod environment;
