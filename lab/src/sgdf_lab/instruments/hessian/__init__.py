"""The spectrum of the Hessian: the second derivatives of the mean loss in all parameters.

The matrix is never stored. `curvlinops` computes products with vectors, and three methods use them:

    the k largest eigenvalues   restarted Lanczos: ARPACK's eigsh on a CPU, our own on a GPU, since
                                ARPACK keeps its vectors in host memory
    the trace                   the sum of these eigenvalues, plus Hutchinson's average v'Hv over
                                random signs v in the remaining space (Hutch++)
    the density                 these eigenvalues, plus stochastic Lanczos quadrature of the rest

Up to 500 parameters, and for k above a third of their number, the whole matrix is computed instead:
then the trace has no error.

Memory for the eigenvalues: 24 k bytes per parameter on a CPU, up to 26 k on a GPU (k = 50 and
ResNet18: 13 and 15 GB).
"""

from sgdf_lab.instruments.hessian.spectra import Spectrum, spectrum

__all__ = ["Spectrum", "spectrum"]
