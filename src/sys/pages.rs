//! Pages that a short run is going to use, mapped in one go each: a page fault costs more than the page. A kernel that
//! can't (before 5.14, or with larger pages) refuses, and maps them when they are used.

use std::arch::global_asm;
use std::ffi::c_int;
use std::ptr;

use super::arena;

const PAGE: usize = 4096;

/// How much of the stack a short run uses.
const STACK: usize = 48 * 1024;

/// How much memory a short run allocates that has the usual command line, and any other one.
const MEMORY: usize = 48 * 1024;
const MEMORY_IN_ALL: usize = 232 * 1024;

global_asm!(include_str!("hot.s"));

unsafe extern "C" {
    /// From where to where the functions of a short run are, which `build/hot.ld` places side by side.
    static redlock_hot: [usize; 2];
}

/// Maps memory, code and a part of the stack, before anything else is done.
pub(super) fn map_usual() {
    // SAFETY: the linker filled it in.
    let [begin, end] = unsafe { redlock_hot };
    map(begin, end, libc::MADV_POPULATE_READ);
    let memory = arena::begin();
    map(memory, memory + MEMORY, libc::MADV_POPULATE_WRITE);
    // Where the stack may not grow as far, or the kernel hasn't reserved that much yet, the rest is refused.
    let here = ptr::from_ref(&memory).addr();
    map(here - STACK, here, libc::MADV_POPULATE_WRITE);
}

/// Maps the memory that is allocated for any other command line than the usual one.
pub fn map_more() {
    const { assert!(MEMORY_IN_ALL <= arena::SIZE) }
    let memory = arena::begin();
    let range = (memory + MEMORY, memory + MEMORY_IN_ALL);
    map(range.0, range.1, libc::MADV_POPULATE_WRITE);
}

/// Maps all pages that have a part in this range.
fn map(begin: usize, end: usize, how: c_int) {
    let begin = begin / PAGE * PAGE;
    // SAFETY: the content of the pages stays as it is; what isn't mapped is refused.
    unsafe {
        libc::madvise(ptr::without_provenance_mut(begin), end - begin, how);
    }
}
