"""Tools that ask of a trained model: how sharp it is, how robust, how its Hessian and its landscape look."""
