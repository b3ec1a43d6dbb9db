/* The constants of a potential, and the number of rows if it is computed block by block. */
typedef struct {
    long num_rows;
    const real *const *constants;
} Data;
