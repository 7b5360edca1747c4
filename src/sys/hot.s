/* Where build/hot.ld has placed the functions of a short run: from the first symbol to the second one. A binary that is
   linked without it has neither, and an address that is 0 for both. */
    .weak redlock_hot_begin
    .weak redlock_hot_end
    .pushsection .data.rel.ro.redlock_hot, "aw"
    .balign 8
    .global redlock_hot
redlock_hot:
    .quad redlock_hot_begin
    .quad redlock_hot_end
    .popsection
