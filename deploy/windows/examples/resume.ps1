# resume.ps1: bring this VM back into service, whatever of prepare.ps1 was done. It may be run a second time.
param([string] $State = "$env:ProgramData\azure-scheduled-events-handshake")
$ErrorActionPreference = 'Stop'

# Your own, such as
#   Start-Service shop

Remove-Item -LiteralPath "$State\out-of-service" -Force -ErrorAction Ignore
exit 0
