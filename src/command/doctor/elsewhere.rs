//! Where this isn't Linux, the kernel can't do what a run needs.

use super::host::Kernel;

pub fn examine() -> Option<Kernel> {
    None
}
