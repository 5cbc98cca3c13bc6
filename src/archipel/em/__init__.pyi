from archipel.em.starts import KMeansPlusPlus as KMeansPlusPlus
from archipel.em.starts import RandomResponsibilities as RandomResponsibilities
